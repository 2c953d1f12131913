#compdef tprimat
# Put this file into a folder of $fpath as _tprimat, or source it after compinit. It asks tprimat itself, which knows the project's cells.
_tprimat() {
    local -a found whole parts
    found=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null | cut -f1)}")
    found=("${(@)found:#}")
    (( $#found )) || { _files; return }
    parts=("${(@M)found:#*[/=]}")
    whole=("${(@)found:#*[/=]}")
    (( $#whole )) && compadd -a whole
    # A part of a name: more of it follows.
    (( $#parts )) && compadd -S '' -a parts
}
if [[ $funcstack[1] == _tprimat ]]; then
    _tprimat "$@"
else
    compdef _tprimat tprimat
fi
