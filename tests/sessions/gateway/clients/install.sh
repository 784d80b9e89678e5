#!/usr/bin/env bash
# Other people's clients, each in an environment of its own beside .venv: they pin other versions of the same packages.
#
#   tests/sessions/gateway/clients/install.sh               those that CI runs: Claude Code and Codex, and four of Python's
#   tests/sessions/gateway/clients/install.sh all           every one (about 3 GB)
#   tests/sessions/gateway/clients/install.sh crewai node   these
#
# `node` is Claude Code and Codex, from npm; the others are named as the files in requirements/. An environment that
# is there already, of the same versions, stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
HERE=tests/sessions/gateway/clients
. tests/engines_env/uv.sh

main() {
    local names=("$@")
    [ $# -gt 0 ] || names=(node instructor pydantic_ai smolagents google_genai)
    if [ "${names[0]}" = all ]; then names=(node $(basename -s .txt $HERE/requirements/*.txt)); fi
    for name in "${names[@]}"; do
        if [ "$name" = node ]; then install_node; else install_python "$name"; fi
    done
}

install_python() {
    local wanted=$HERE/requirements/$1.txt env=.venv-clients-$1
    cmp -s "$wanted" "$env/installed" && return
    find_uv
    rm -rf "$env"
    "$UV" venv --quiet --python "$(.venv/bin/python -c 'import sys; print(sys.executable)' 2>/dev/null || command -v python3)" "$env"
    "$UV" pip install --quiet --compile-bytecode --python "$env/bin/python" --requirement "$wanted"
    cp "$wanted" "$env/installed"
}

# npm may leave a package's own install script out; Claude Code's puts the program for this machine in its place.
install_node() {
    local env=.venv-clients-node
    cmp -s $HERE/package.json $env/package.json && test -e $env/installed && return
    rm -rf $env
    mkdir $env
    cp $HERE/package.json $env/
    npm install --prefix $env --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error
    node $env/node_modules/@anthropic-ai/claude-code/install.cjs
    touch $env/installed
}

main "$@"
