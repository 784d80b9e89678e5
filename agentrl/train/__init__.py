"""Training: credit, packing, losses, backends, the loop.

The package shares its name with the function that most scripts want, and an import of any module in here
makes `agentrl.train` the package. So the package can be called: `agentrl.train(...)` is
`agentrl.train.driver.api.train`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from agentrl.train.driver.api import train

        return train(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
