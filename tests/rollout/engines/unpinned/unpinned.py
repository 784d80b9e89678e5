"""Lets SGLang's recorder of routes start on a machine without CUDA: its host memory stays unpinned there.

The `sitecustomize` of `forked/` imports it where its folder is on the path: that of the test's server only. Pinning
makes copies from a GPU faster and changes no value, so what is tested is the server's own recording.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

PINS = "sglang.srt.mem_cache.pool_host.common"


class Unpinned(importlib.abc.MetaPathFinder):
    """Finds that one module, and takes the pinning out of it."""

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, changed; None for all others."""
        if name != PINS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: Any) -> None:
            load(module)
            module._cuda_host_register = lambda *_, **__: None

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Unpinned())
