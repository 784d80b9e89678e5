"""Plug-ins by name: one `Registry` for each kind (environment, engine, trainer, algorithm, transport, …).

A plug-in is found by a name (built in, registered, or an installed package's entry point) or by an import path
(`package.module:NAME`, `path/to/file.py:NAME`). A name stands for an import path until it is used, so listing names
imports nothing, and a package that can't be imported makes only its own name fail.

A plug-in owns its settings: its attribute `settings` is the pydantic class of its section of the configuration. It
can be read without the plug-in's heavy libraries, since the configuration is built where they may be missing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from agentrl.common.imports import load, module_of
from agentrl.errors import AgentRLError, ConfigError, InvalidInput, UnknownName, unknown_name

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PluginInfo:
    """A known name: where its object is, and why it can't be used ('' where it can)."""

    name: str
    source: str
    error: str = ""


class Registry(Generic[T]):
    """The plug-ins of one kind.

    Attributes:
        base: the settings that all plug-ins of the kind have; without fields where they have none.
    """

    def __init__(
        self,
        kind: str,
        setting: str,
        group: str,
        built_in: Mapping[str, object],
        *,
        accept: Callable[[Any], T | None] | None = None,
        settings: type[BaseModel] | None = None,
        default: Callable[[Any], bool] | None = None,
        hint: Callable[[str, Any], str] | None = None,
        error: type[AgentRLError] = ConfigError,
    ) -> None:
        """Build a registry.

        Args:
            kind: what one is called in messages: "engine".
            setting: the setting that names one: "engine".
            group: the entry points of installed packages: "agentrl.engines".
            built_in: what agentrl brings, by name: import paths, or the plug-ins themselves.
            accept: turns what stands at an import path into a plug-in; None where it is not one of this kind. Without
                it those are plug-ins that `default` marks.
            settings: the base class of the settings, which is used for plug-ins without an attribute `settings`; None:
                plug-ins of this kind have no settings.
            default: marks the objects that `path/to/file.py` without `:NAME` may mean; None: a NAME is required.
            hint: says, of an import path and what stands there that is of another kind, what may be meant; or ''.
            error: raised where importing a plug-in fails, or it is of the wrong kind.
        """
        self.kind, self.setting, self.group = kind, setting, group
        self.base, self._have_settings = settings or BaseModel, settings is not None
        self._built_in = built_in
        self._targets: dict[str, object] = dict(built_in)
        self._default, self._error = default or (lambda value: False), error
        self._hint = hint or (lambda path, found: "")
        self._accept = accept or (lambda found: found if self._default(found) else None)

    def register(self, name: str, target: object) -> None:
        """Make a plug-in known as `name`; a later registration replaces an earlier one.

        Args:
            name: without ":" and "/", which mark import paths.
            target: the plug-in, or what `accept` makes one of, or an import path, which is imported at first use.

        Raises:
            InvalidInput: the name or the target has the wrong form.
        """
        if not name or ":" in name or "/" in name:
            raise InvalidInput(f"{name!r} is no valid {self.kind} name: it is empty or contains ':' or '/'")
        if isinstance(target, str) and ":" not in target:
            raise InvalidInput(f"{target!r} is no {self.kind}, and no import path of the form 'module:Class'")
        self._targets[name] = target

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forget at the block's end what was registered within it."""
        before = dict(self._targets)
        try:
            yield
        finally:
            self._targets = before

    def known(self) -> dict[str, object]:
        """All names: those of installed packages, agentrl's own, then registered ones; of the same name, the last."""
        return {**{entry.name: entry for entry in entry_points(group=self.group)}, **self._targets}

    def is_of_process(self, name: str) -> bool:
        """Return whether a name was registered in this process, so that no other one knows it."""
        return name in self._targets and self._targets[name] is not self._built_in.get(name)

    def available(self) -> dict[str, T]:
        """Every plug-in that can be imported, by name, the last registered one last; others cause a warning."""
        found = {}
        for name in self.known():
            try:
                found[name] = self.find(name)
            except AgentRLError as error:
                _log.warning("%s %r is left out: %s", self.kind, name, error)
        return found

    def find(self, name: str) -> T:
        """The plug-in of a name or an import path.

        Raises:
            UnknownName: no such name, module, file, or object in it; the message has the nearest name.
            ConfigError: importing it failed, or what is there is of another kind (EnvError for environments).
        """
        target: object = self._targets.get(name)
        if target is None and (":" in name or name.endswith(".py")):
            target = name
        if target is None:
            names = self.known()
            if name not in names:
                error = unknown_name(self.kind, name, names)
                if os.path.isfile(os.path.join(name, "pyproject.toml")):  # as `agentrl init` makes it
                    raise UnknownName(
                        f"the package in the folder {name!r} is not installed: pip install -e {name}; {error}"
                    )
                if os.path.isfile(name):
                    raise UnknownName(f"{name!r} is a file and no Python module: name path/to/file.py:NAME; {error}")
                raise error
            target = names[name]
        found = self._load(name, target)
        plugin = self._accept(found)
        if plugin is None:
            hint = self._hint(name, found)
            raise self._error(f"{self.setting}={name!r} is {found!r}, which is no {self.kind}{hint and f'; {hint}'}")
        return plugin

    def settings(self, name: str) -> type[BaseModel]:
        """The class of a plug-in's section of the configuration.

        Raises:
            UnknownName: see `find`.
            ConfigError: see `find`; or its attribute `settings` is no class of settings.
        """
        return self.settings_of(self.find(name), name)

    def settings_of(self, plugin: T, name: str) -> type[BaseModel]:
        """The settings of a plug-in that was found already."""
        found = (self._have_settings and getattr(plugin, "settings", None)) or self.base
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise self._error(
                f"{self.setting}={name!r}: its attribute `settings` is {found!r}, "
                f"which is no subclass of {self.base.__module__}.{self.base.__name__}"
            )
        return found

    def list(self) -> list[PluginInfo]:
        """Every known name, in alphabetical order; one that can't be imported says so instead of failing the list."""
        return [self._info(name, target) for name, target in sorted(self.known().items())]

    def _info(self, name: str, target: object) -> PluginInfo:
        try:
            self.settings(name)
        except (AgentRLError, ModuleNotFoundError) as error:
            return PluginInfo(name, _source(target), str(error))
        return PluginInfo(name, _source(target))

    def _load(self, name: str, target: object) -> Any:
        if not isinstance(target, str | EntryPoint):
            return target
        path = _source(target)
        where = f"{self.setting}={name!r}" + (f" ({path})" if path != name else "")
        if path.endswith(".py"):
            return self._only(module_of(path, where, self._error), name)
        try:
            return load(path, where, self._error)
        except UnknownName as error:
            if path != name:  # an installed package's own mistake, or a registration's
                raise self._error(f"{error}") from error
            raise

    def _only(self, module: ModuleType, path: str) -> Any:
        """Return what `path/to/file.py` means: the only object of this kind that the file defines."""
        found = {
            name: value
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__ and self._default(value)
        }
        if len(found) != 1:
            there = ", ".join(found) or "none"
            raise UnknownName(f"{self.setting}={path!r}: name one {self.kind}, as in file.py:NAME (there: {there})")
        return next(iter(found.values()))


def subclass_of(base: type[Any]) -> Callable[[Any], bool]:
    """Return a predicate that is true of `base` and of the classes derived from it."""
    return lambda found: isinstance(found, type) and issubclass(found, base)


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Those of a group that packages have which are installed now.

    A run asks some twenty times, and a file of each package is read to answer; what is installed changes a folder.
    """
    return _read(group, tuple((folder, _last_change(folder)) for folder in sys.path))


@lru_cache(maxsize=256)
def _read(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


def _last_change(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _source(target: object) -> str:
    if isinstance(target, EntryPoint):
        return f"{target.module}:{target.attr}"
    if isinstance(target, str):
        return target
    kind = target if callable(target) and hasattr(target, "__qualname__") else type(target)
    return f"{kind.__module__}:{kind.__qualname__}"
