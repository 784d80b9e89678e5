#!/usr/bin/env bash
# The libraries that adapters are tried with, in .venv-adapters: they pin versions that .venv does not have.
# An environment that is there already, of the same versions, stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../../.."
. tests/engines_env/uv.sh

WANTED=tests/envs/adapters/requirements.txt
cmp -s "$WANTED" .venv-adapters/installed && exit
find_uv
rm -rf .venv-adapters
"$UV" venv --quiet --python "$(.venv/bin/python -c 'import sys; print(sys.executable)')" .venv-adapters
"$UV" pip install --quiet --compile-bytecode --python .venv-adapters/bin/python --requirement "$WANTED"
cp "$WANTED" .venv-adapters/installed
