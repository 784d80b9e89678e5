"""Names for environments: built in, registered, brought by an installed package, or a file's class.

A name stands for an import path until it is used, so that listing what exists imports nothing heavy and a
package that is broken spoils only its own name. Constructor options are checked against the class's own
signature before it is called: a typing mistake on the command line is answered with what is allowed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import docstring_parser
from pydantic import ValidationError

from agentrl.envs.base import Env, has_expert
from agentrl.errors import AgentRLError, ConfigError, EnvError, InvalidInput, UnknownName, unknown_name
from agentrl.imports import module_of
from agentrl.tools.schema import Parameter, Signature

ENTRY_POINTS = "agentrl.envs"
"""The entry point group in which a package names its environments: `shop = "my_package.shop:Shop"`."""

EnvFactory = Callable[..., Env]
Target = EnvFactory | str | EntryPoint
"""A class or another callable, "module:Class", or an entry point."""

_registered: dict[str, Target] = {
    "calculator": "agentrl.envs.calculator:Calculator",
    "castle": "agentrl.envs.castle:Castle",
    "code": "agentrl.envs.code.env:Code",
    "gsm8k": "agentrl.envs.gsm8k:GSM8K",
    "swe": "agentrl.envs.swe.env:Swe",
}


def register(name: str, target: EnvFactory | str) -> None:
    """Make an environment known as `name`; a later registration replaces an earlier one.

    Args:
        name: without ":" and "/", which mark files.
        target: the class, a callable that returns an environment, or "module:Class", imported at first use.

    Raises:
        InvalidInput: the name or the target has the wrong form.
    """
    if not name or ":" in name or "/" in name:
        raise InvalidInput(f"{name!r} can't name an environment: it is empty or contains ':' or '/'")
    if not callable(target) and ":" not in target:
        raise InvalidInput(f"{target!r} is no class, and not of the form 'module:Class'")
    _registered[name] = target


def known() -> dict[str, Target]:
    """All names: built in, registered, and from installed packages; what is registered here goes first."""
    return {**{entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}, **_registered}


def find(name: str | EnvFactory) -> EnvFactory:
    """The class (or callable) behind a name, or behind path/to/file.py:Class.

    Raises:
        UnknownName: no such name, file or class.
        EnvError: it exists and can't be imported.
    """
    if not isinstance(name, str):
        return name
    path, _, attribute = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
    if path.endswith(".py"):
        return _pick(_load_file(Path(path), name), attribute, name)
    names = known()
    if name in names:
        return _import(name, names[name])
    raise unknown_name("environment", name, names)


def make(name: str | EnvFactory, **kwargs: Any) -> Env:
    """A new environment.

    Args:
        name: a known name, path/to/file.py:Class, or a class itself.
        kwargs: its constructor's options.

    Raises:
        UnknownName: nothing of that name.
        ConfigError: an option is unknown, missing, or of the wrong type.
        EnvError: its code failed, or gave something that is no Env.
    """
    return factory(name, **kwargs)()


def factory(name: str | EnvFactory, **kwargs: Any) -> Callable[[], Env]:
    """Like `make`, for many instances: options are checked once, and each call constructs a new one."""
    target = find(name)
    label = name if isinstance(name, str) else getattr(name, "__name__", "environment")
    signature = _signature(target, label)
    try:
        checked = signature.check(kwargs)
    except ValidationError as error:
        raise ConfigError(f"environment {label!r}: {signature.complaints(error, 'env.')}") from None

    def build() -> Env:
        try:
            env = target(**checked)
        except AgentRLError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"environment {label!r}: {error}") from error
        except (Exception, SystemExit) as error:
            raise EnvError(f"environment {label!r} can't be built: {type(error).__name__}: {error}") from error
        if not isinstance(env, Env):
            raise EnvError(f"environment {label!r} gave {type(env).__name__}, which is no agentrl.Env")
        splits: Any = env.splits
        if isinstance(splits, str) or not splits:
            name = type(env.unwrapped).__name__
            raise EnvError(f"{name}.splits is {splits!r}; it must be a tuple of names, as in ('train', 'eval')")
        return env

    return build


@dataclass(frozen=True)
class EnvInfo:
    """One line of `agentrl envs`; `error` says why a known name can't be used, and is '' otherwise."""

    name: str
    description: str = ""
    splits: tuple[str, ...] = ()
    expert: bool = False
    options: tuple[Parameter, ...] = field(default=())
    error: str = ""


def list_envs() -> list[EnvInfo]:
    """Every known environment, by name; one that can't be imported says so instead of failing the list."""
    return [describe(name) for name in sorted(known())]


def describe(name: str | EnvFactory) -> EnvInfo:
    """What a user may want to know about an environment before using it."""
    label = name if isinstance(name, str) else getattr(name, "__name__", "environment")
    try:
        target = find(name)
        lines = (inspect.getdoc(target) or "").strip().splitlines()
        options = _signature(target, label).parameters
    except AgentRLError as error:
        return EnvInfo(label, error=str(error))
    splits: tuple[str, ...] = ()
    expert = False
    if isinstance(target, type) and issubclass(target, Env):
        splits, expert = target.splits, has_expert(target)
    return EnvInfo(label, lines[0] if lines else "", splits, expert, options)


def _signature(target: EnvFactory, label: str) -> Signature:
    constructor = inspect.getattr_static(target, "__init__") if isinstance(target, type) else target
    if constructor is object.__init__:
        return Signature(())
    documents = f"{inspect.getdoc(target) or ''}\n\n{inspect.getdoc(constructor) or ''}"
    described = {entry.arg_name: entry.description or "" for entry in docstring_parser.parse(documents).params}
    try:
        return Signature.of(constructor, descriptions=described, allow_open=True)
    except InvalidInput as error:
        raise EnvError(f"environment {label!r}: {error}") from None


def _import(name: str, target: Target) -> EnvFactory:
    try:
        if isinstance(target, EntryPoint):
            found: Any = target.load()
        elif isinstance(target, str):
            module, _, attribute = target.partition(":")
            found = getattr(importlib.import_module(module), attribute)
        else:
            found = target
    except AgentRLError:
        raise
    except (Exception, SystemExit) as error:
        where = target.value if isinstance(target, EntryPoint) else target
        raise EnvError(
            f"environment {name!r} can't be imported from {where}: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise EnvError(f"environment {name!r} is {found!r}, which is no class")
    return found  # type: ignore[no-any-return]


def _load_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise UnknownName(f"environment {name!r}: there is no file {str(path)!r}")
    try:
        return module_of(path)
    except (Exception, SystemExit) as error:
        raise EnvError(f"environment {name!r}: importing it raised {type(error).__name__}: {error}") from error


def _pick(module: ModuleType, attribute: str, name: str) -> EnvFactory:
    classes = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Env) and value.__module__ == module.__name__
    }
    if not attribute and len(classes) == 1:
        return next(iter(classes.values()))
    if not attribute:
        found = ", ".join(classes) or "none"
        raise UnknownName(f"environment {name!r}: say which class, as in file.py:Class (environments there: {found})")
    target = getattr(module, attribute, None)
    if target is None:
        raise unknown_name(f"environment in {name.rpartition(':')[0]!r}:", attribute, classes)
    if not callable(target):
        raise EnvError(f"environment {name!r} is {target!r}, which is no class")
    return target  # type: ignore[no-any-return]
