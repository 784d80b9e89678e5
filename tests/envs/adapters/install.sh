#!/usr/bin/env bash
# The libraries that adapters are tried with, beside .venv: they pin versions that .venv does not have.
#
#   requirements/adapters.txt     .venv-adapters
#   requirements/NAME.txt         .venv-adapters-NAME: a library that does not go with the others
#
# An environment that is there already, of the same versions, stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../../.."
. tests/engines_env/uv.sh

HERE=tests/envs/adapters/requirements

install() {
    local env=$1 wanted=("$HERE/common.txt" "$HERE/$2.txt")
    cat "${wanted[@]}" | cmp -s - "$env/installed" && return
    find_uv
    rm -rf "$env"
    "$UV" venv --quiet --python "${PYTHON:-$(.venv/bin/python -c 'import sys; print(sys.executable)')}" "$env"
    "$UV" pip install --quiet --compile-bytecode --python "$env/bin/python" -r "${wanted[0]}" -r "${wanted[1]}"
    cat "${wanted[@]}" >"$env/installed"
}

install .venv-adapters adapters
install .venv-adapters-verifiers verifiers
install .venv-adapters-openenv openenv

# NeMo Gym needs a later Python than the others; where there is none its tests are skipped.
if find_uv && "$UV" python find --quiet --no-python-downloads '>=3.12' >/dev/null 2>&1; then
    PYTHON='>=3.12' install .venv-adapters-nemo_gym nemo_gym
else
    echo "no Python 3.12: NeMo Gym is not installed"
fi
