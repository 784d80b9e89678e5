"""A server whose processes are forked from its first one; Python imports this at its start, by `servers.python`.

SGLang spawns them, as CUDA wants it: each imports again what the first has, 11 CPU seconds and half a gigabyte, on a
CPU for nothing. Those of `tests/cluster/test_servers.py` and `test_sglang_experts.py` start as users' do.
"""

import multiprocessing

_set = multiprocessing.set_start_method


def set_start_method(method: str | None, force: bool = False) -> None:
    """Fork where spawning is wanted."""
    _set("fork" if method == "spawn" else method, force)


multiprocessing.set_start_method = set_start_method
