"""Modules that are trained in full beside an adapter: marked, their parameters are the adapter's too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from agentrl.errors import ConfigError

MARK = "lora_full"
"""The attribute of such modules."""
FULL_RATE = 0.1
"""Their part of an adapter's learning rate, which is ten times a whole model's."""


def mark(modules: Iterable[nn.Module]) -> None:
    """Have these modules trained in full."""
    for module in modules:
        setattr(module, MARK, True)


def remove_marks(model: nn.Module) -> None:
    """Have no module trained in full; weights stay as they are."""
    for module in model.modules():
        if hasattr(module, MARK):
            delattr(module, MARK)


def full_names(model: nn.Module) -> list[str]:
    """Return the names of a model's parameters that are trained in full beside its adapter; all names of tied ones."""
    return names_of(model, [module for module in model.modules() if hasattr(module, MARK)])


def names_of(model: nn.Module, modules: Iterable[nn.Module]) -> list[str]:
    """Return the names of modules' own parameters in a model; all names of tied ones."""
    own = {id(parameter) for module in modules for parameter in module.parameters(recurse=False)}
    return [name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in own]


def matching_modules(model: nn.Module, patterns: tuple[str, ...]) -> list[nn.Module]:
    """Return the modules with weights and without inner modules whose names patterns match."""
    leaves = {
        name: module
        for name, module in model.named_modules()
        if not list(module.children()) and list(module.parameters(recurse=False))
    }
    return [leaves[name] for name in choose_names("lora.full", patterns, list(leaves), "modules with weights")]


def choose_names(setting: str, patterns: Iterable[str], names: Sequence[str], what: str) -> list[str]:
    """Return the names that patterns match, in order; raise ConfigError where a pattern matches none."""
    patterns = list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"{setting}: {pattern!r} matches none of the model's {len(names)} {what}; their names are like "
                f"{', '.join(dict.fromkeys([*names[:3], *names[-1:]]))}"
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
