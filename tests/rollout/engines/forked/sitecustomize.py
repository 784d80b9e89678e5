"""A server whose processes are forked from its first one; Python imports it at its start: `servers.forking_python`.

SGLang and vLLM spawn them, as CUDA wants it: each imports again what the first has, 11 CPU seconds and half a gigabyte,
on a CPU for nothing. Those of `tests/cluster/test_servers.py` start as users' do.
"""

import contextlib
import importlib
import multiprocessing
from typing import Any

_set, _get = multiprocessing.set_start_method, multiprocessing.get_context


def _forked(method: Any) -> Any:
    return "fork" if method == "spawn" else method


def set_start_method(method: str | None, force: bool = False) -> None:
    """Fork where spawning is wanted, as SGLang says it."""
    _set(_forked(method), force)


def get_context(method: str | None = None) -> Any:
    """The same, as vLLM says it."""
    return _get(_forked(method))


multiprocessing.set_start_method = set_start_method
multiprocessing.get_context = get_context  # type: ignore[method-assign, assignment]

with contextlib.suppress(ImportError):  # on the path of one test's server
    importlib.import_module("unpinned")
