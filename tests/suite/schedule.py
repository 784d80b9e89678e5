"""In which order the tests run, and by which worker: by the heavy real part that they need.

A heavy part (Ray's nodes, an inference server, ranks, the Docker daemon, a browser) starts at its first use and ends
after its last one. So all tests of one are a unit that one worker takes, in the order of a table, and at most two
workers have one at a time: two is what a machine of 16 GB can hold. Any further worker takes only other tests, a file
at a time, which need nothing but Python; they fill the time in which the heavy ones wait. A second such worker
gained no time, and took 2.4 GB.

A test's part follows from its path, since the process that hands out tests knows no more of them: `PARTS` says which.
What a part's tests share is made by `kept`, and ends when a worker comes to a test of another part.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Generator
from functools import _lru_cache_wrapper
from types import ModuleType
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.suite.leftovers import servers

T = TypeVar("T")
HEAVY_WORKERS = ("gw0", "gw1")
PARTS: dict[str, tuple[str, ...]] = {
    "models": ("tests/rollout/engines/test_real_model", "tests/rollout/engines/test_sglang_experts"),
    "docker": ("tests/envs/swe/", "tests/envs/code/", "tests/envs/test_terminal", "tests/tools/", "tests/redteam/"),
    "sglang": ("tests/rollout/engines/test_sglang.py", "tests/rollout/fleet/test_servers"),
    "ray": ("tests/cluster/",),
    "ranks": ("tests/train/backends/",),
    "engines": ("tests/rollout/engines/", "tests/rollout/fleet/"),
    "browser": ("tests/viewer/",),
}
"""The heavy parts and the beginnings of the paths of their tests; the first that fits counts.

In the order in which they begin: those that hold most memory first, 5.7 GB each, beside containers, which hold least,
and while the workers are small; then those that wait most, since others compute meanwhile. "sglang" shares a server,
and those of "models" have models of their own: three gigabytes a server, of which two are the imports of its processes.
"""
CACHED = {"tokenizers": ("tests/sessions/renderers/", "tests/sessions/test_strip.py", "tests/models/test_tokenizer")}
"""What is light, and dear to make and to keep: one worker, whichever is free, takes its tests and clears its caches."""

FIRST = (
    *("tests/train/test_learning.py", "tests/envs/check/test_planted.py", "tests/envs/check/test_check.py"),
    *("tests/envs/adapters/", "tests/train/test_resume.py", "tests/sessions/gateway/test_trained_clients.py"),
    *("tests/docs/test_environments_page.py", "tests/test_gpu_benchmark.py", "tests/sessions/gateway/test_load.py"),
)
"""The dearest of what is light: begun first, the others by their number of tests, so that no worker ends alone.

The first makes the model that others read, who would wait for it."""


def part_of(test: str) -> str | None:
    """The part that a test needs, by its path."""
    return next((name for name, paths in (PARTS | CACHED).items() if test.startswith(paths)), None)


class ByPart(LoadScopeScheduling):
    """Hands out a part at a time, and what needs none by the file."""

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid) or nodeid.partition("::")[0]

    def schedule(self) -> None:
        """Hand out the first units; the order is printed."""
        if self.collection is None and self.collection_is_completed:
            names = Counter(map(self._split_scope, next(iter(self.registered_collections.values()))))
            heavy = [f"{name} ({names[name]})" for name in PARTS if name in names]
            rest = sum(count for name, count in names.items() if name not in PARTS)
            reporter = self.config.pluginmanager.get_plugin("terminalreporter")
            reporter.write_line(f"order of the tests: {', '.join(heavy)}, others by file ({rest})")
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the next unit that it may have: heavy ones first, in the order of the table, then dear ones."""
        heavy = [name for name in PARTS if name in self.workqueue and node.gateway.id in HEAVY_WORKERS]
        cached = [name for name in CACHED if name in self.workqueue]
        light = [name for name in self.workqueue if name not in PARTS]
        dear = [name for first in FIRST for name in light if name.startswith(first)]
        chosen = next(iter(heavy + dear + cached + light), None)
        if chosen is None:  # only heavy units are left, which the others take
            node.shutdown()
            return
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


kept_servers: set[tuple[int, tuple[str, ...]]] = set()
"""Servers that stay beyond a module, since others use them."""
_kept: dict[str, tuple[Any, contextlib.ExitStack]] = {}


def kept(name: str, make: Callable[[], contextlib.AbstractContextManager[T]]) -> T:
    """What tests of a part share by that name, made at its first use."""
    if name not in _kept:
        stack, before = contextlib.ExitStack(), servers()
        _kept[name] = stack.enter_context(make()), stack
        kept_servers.update(servers() - before)
    made: T = _kept[name][0]
    return made


def end_kept() -> None:
    """End all that is kept, the newest first."""
    for name in reversed(list(_kept)):
        _kept.pop(name)[1].close()


def clear_caches() -> None:
    """Empty the caches of functions in test modules."""
    for module in [module for name, module in sys.modules.items() if name.startswith("tests.")]:
        for value in vars(module).values():
            if isinstance(value, _lru_cache_wrapper):
                value.cache_clear()


def clear_own_caches(module: ModuleType | None) -> None:
    """Empty the caches of the functions that a module of tests defines: no other test asks for them."""
    for value in vars(module).values() if module is not None else ():
        if isinstance(value, _lru_cache_wrapper) and value.__module__ == module.__name__:
            value.cache_clear()


class PartsEnd:
    """Ends what a part's tests share when this process comes to a test of another part, or to none.

    What a module alone has cached ends with it: two that parse the package had half a gigabyte each to the end.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                clear_own_caches(getattr(item, "module", None))
            if nextitem is None or part_of(nextitem.nodeid) != part_of(item.nodeid):
                end_kept()
                clear_caches()
