#!/usr/bin/env bash
# Other people's clients, each in an environment of its own beside .venv: they pin other versions of the same packages.
#
#   tests/sessions/gateway/clients/install.sh               those that CI runs
#   tests/sessions/gateway/clients/install.sh all           every one (about 4 GB)
#   tests/sessions/gateway/clients/install.sh crewai node   these
#
# They are named as the files in packages/ (from npm; `node` is Claude Code and Codex) and requirements/ (Python's, which may
# name a version of Python: an interpreter of it is found or fetched, or is CLIENTS_PYTHON). An environment that is there
# already, of the same versions, stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
HERE=tests/sessions/gateway/clients
. tests/engines_env/uv.sh

main() {
    local names=("$@")
    [ $# -gt 0 ] || names=(node ai_sdk instructor pydantic_ai smolagents google_genai strands haystack mirascope)
    if [ "${names[0]}" = all ]; then
        names=($(basename -s .json $HERE/packages/*.json) $(basename -s .txt $HERE/requirements/*.txt))
    fi
    for name in "${names[@]}"; do
        if [ -e $HERE/packages/"$name".json ]; then install_npm "$name"; else install_python "$name"; fi
    done
}

install_python() {
    local wanted=$HERE/requirements/$1.txt env=.venv-clients-$1
    cmp -s "$wanted" "$env/installed" && return
    find_uv
    rm -rf "$env"
    "$UV" venv --quiet --python "$(python_of "$wanted")" "$env"
    "$UV" pip install --quiet --compile-bytecode --python "$env/bin/python" --requirement "$wanted"
    cp "$wanted" "$env/installed"
}

# The interpreter for a list of requirements: one that is at least of the version that the list names.
python_of() {
    local least
    least=$(sed -n 's/^# python //p' "$1")
    if [ -n "$least" ]; then echo "${CLIENTS_PYTHON:->=$least}"; return; fi
    .venv/bin/python -c 'import sys; print(sys.executable)' 2>/dev/null || command -v python3
}

# npm may leave a package's own install script out; Claude Code's and opencode's put the program for this machine in its
# place.
install_npm() {
    local wanted=$HERE/packages/$1.json env=.venv-clients-$1
    cmp -s "$wanted" "$env/package.json" && test -e "$env/installed" && return
    rm -rf "$env"
    mkdir "$env"
    cp "$wanted" "$env/package.json"
    npm install --prefix "$env" --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error
    for own in @anthropic-ai/claude-code/install.cjs opencode-ai/postinstall.mjs; do
        if [ -e "$env/node_modules/$own" ]; then (cd "$env/node_modules/${own%/*}" && node "${own##*/}"); fi
    done
    touch "$env/installed"
}

main "$@"
