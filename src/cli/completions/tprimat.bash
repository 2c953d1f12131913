# Source this file from ~/.bashrc: `source <(tprimat completions bash)`. It asks tprimat itself, which knows the project's cells.
_tprimat() {
    local line="${COMP_LINE:0:COMP_POINT}" words current kept
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current="${words[-1]}"
    mapfile -t COMPREPLY < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null | cut -f1)
    # Bash breaks words at these characters too, and replaces only what follows the last of them.
    kept="${current%"${current##*[@=:]}"}"
    [[ -n $kept ]] && COMPREPLY=("${COMPREPLY[@]#"$kept"}")
    # A part of a name: more of it follows.
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -o default -F _tprimat tprimat
