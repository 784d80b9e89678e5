"""What users name by import path: `package.module:NAME`, or `path/to/file.py:NAME`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.errors import AgentRLError, ConfigError, UnknownName, nearest


def load(path: str, setting: str) -> Any:
    """The object at an import path.

    Args:
        path: `package.module:NAME` or `path/to/file.py:NAME`.
        setting: the setting that names it, for messages.

    Raises:
        UnknownName: no such module, file, or name in it.
        ConfigError: importing it raised something.
        ModuleNotFoundError: a module of ours lacks a library.
    """
    where = f"{setting}={path!r}"
    module, _, name = path.strip().rpartition(":")
    if not module or not name:
        raise UnknownName(f"{where} is no import path; it looks like package.module:NAME or path/to/file.py:NAME")
    found = vars(_imported(module, where))
    if name not in found:
        guess = nearest(name, (known for known in found if not known.startswith("_")))
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise UnknownName(f"{where}: there is no {name!r} in {module}{hint}")
    return found[name]


def _imported(module: str, where: str) -> ModuleType:
    try:
        return _from_file(Path(module), where) if module.endswith(".py") else importlib.import_module(module)
    except AgentRLError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise UnknownName(f"{where}: there is no module {missing!r} (looked for in sys.path)") from None
        if missing and module.startswith("agentrl."):
            raise
        raise ConfigError(f"{where}: importing it raised {type(error).__name__}: {error}") from error


def _from_file(path: Path, where: str) -> ModuleType:
    if not path.is_file():
        raise UnknownName(f"{where}: there is no file {str(path)!r}")
    return module_of(path)


def module_of(path: Path) -> ModuleType:
    """Import a file under a name of its own, which stays in `sys.modules`; an edited file is a new module.

    dataclasses, pydantic and pickle look a class's module up there by its name.

    Raises:
        Exception: whatever the file's code raises.
    """
    path = path.resolve()
    stamp = f"{path}:{path.stat().st_mtime_ns}"
    name = f"agentrl_file_{path.stem}_{hashlib.blake2b(stamp.encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
