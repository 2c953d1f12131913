# Write this file to ~/.config/fish/completions/tprimat.fish. It asks tprimat itself, which knows the project's cells.
function __tprimat_complete
    set -l found (tprimat __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c tprimat -f -a '(__tprimat_complete)'
