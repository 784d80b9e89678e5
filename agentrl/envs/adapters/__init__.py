"""Environments of other libraries, each imported when one of its environments is first used; see docs/adapters.md."""

from __future__ import annotations

import importlib
from types import ModuleType

from agentrl.errors import require_extra


def library(module: str, extra: str) -> ModuleType:
    """A library's module, or one of ours that needs it.

    Args:
        module: its dotted name.
        extra: the extra of agentrl-platform that brings the library.

    Raises:
        MissingExtra: it is not installed.
    """
    with require_extra(extra):
        return importlib.import_module(module)
