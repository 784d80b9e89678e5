# For scripts in this repository's root: finds uv as $UV.
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" # uv does not read pip's settings

# uv makes environments in seconds where pip takes many minutes; where it is not on the machine, it comes as a package.
find_uv() {
    [ -n "${UV:-}" ] && return
    if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
        UV=uv
        return
    fi
    test -x .venv-uv/bin/uv || { python3 -m venv .venv-uv && .venv-uv/bin/pip install --quiet uv; }
    UV=$PWD/.venv-uv/bin/uv
}
