#!/bin/sh
# vLLM's interpreter, for tests: it imports this folder's sitecustomize.py as well.
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
exec "$here/../../../../.venv-vllm/bin/python" "$@"
