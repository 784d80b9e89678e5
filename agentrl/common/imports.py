"""Load objects by import path: `package.module:NAME`, or `path/to/file.py:NAME`.

A file may import what lies beside it, as a script may. Python has one table of modules by name, and several files'
folders may each have a `helpers.py`: so these are imported under names of their own too, by an `__import__` that the
file alone has. What is installed goes first: a folder of some name beside a file changes nothing for it.

A process that a run starts imports what the run itself has imported, whatever the files are by then (`files`,
`find_files`): they may be edited while it goes on, and be half written.

Reading somebody's record must not run the code that it names: within `names_only` nothing but agentrl's own is loaded.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import importlib.abc
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from agentrl.common.foreign_errors import is_foreign, words
from agentrl.errors import AgentRLError, ConfigError, UnknownName, UntrustedCode, suggest

_names_only: ContextVar[set[str] | None] = ContextVar("names_only", default=None)
_imported: ContextVar[Path | None] = ContextVar("imported", default=None)
"""The file that is being imported by its path."""
_log = logging.getLogger(__name__)
_PREFIX = "agentrl_file_"
"""With it begin the names of modules that were imported from a file's path."""
_PACKAGE = "__init__.py"
_given: dict[str, bytes] = {}
"""Sources by paths, as another process, whose work this one does, imported them."""


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """A file as a process has imported it."""

    path: str
    source: bytes


@contextmanager
def names_only() -> Iterator[set[str]]:
    """Refuse import paths outside agentrl within the block; it is given those that were refused, as they come.

    It holds for this thread, its tasks, and threads that asyncio starts for them.
    """
    refused: set[str] = set()
    token = _names_only.set(refused)
    try:
        yield refused
    finally:
        _names_only.reset(token)


def load(path: str, where: str, error: type[AgentRLError] = ConfigError) -> Any:
    """The object at an import path.

    Args:
        path: `package.module:NAME` or `path/to/file.py:NAME`.
        where: the setting that names it, for messages: "engine='package.module:NAME'".
        error: raised where importing fails.

    Raises:
        UnknownName: no such module, file, or name in it.
        UntrustedCode: it is outside agentrl, and only names are wanted (`names_only`).
        AgentRLError: importing it raised something (of the type `error`).
        ModuleNotFoundError: a module of agentrl's own lacks a library.
    """
    module, _, name = path.strip().rpartition(":")
    if not module or not name:
        raise UnknownName(f"{where} is no import path; it looks like package.module:NAME or path/to/file.py:NAME")
    refused = _names_only.get()
    if refused is not None and module != "agentrl" and not module.startswith("agentrl."):
        refused.add(path)
        raise UntrustedCode(f"{where}: reading a record runs no code that it names; --trust runs it")
    found = module_of(module, where, error)
    if name not in vars(found):
        own = [key for key, value in vars(found).items() if getattr(value, "__module__", "") == found.__name__]
        hint = suggest(name, (known for known in vars(found) if not known.startswith("_")))
        raise UnknownName(f"{where}: there is no {name!r} in {module}{hint} (known: {', '.join(own) or 'none'})")
    return vars(found)[name]


def module_of(module: str, where: str, error: type[AgentRLError] = ConfigError) -> ModuleType:
    """The module of a dotted name or of a file's path; `load` describes arguments and errors."""
    is_file = module.endswith(".py")
    try:
        return _file_module(Path(module).expanduser(), where) if is_file else importlib.import_module(module)
    except AgentRLError:
        raise
    except BaseException as raised:
        if not is_foreign(raised):
            raise
        missing = raised.name if isinstance(raised, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            top = missing.partition(".")[0]
            here = os.path.exists(top) or os.path.exists(f"{top}.py")
            hint = f"; {top} in the working directory is found with PYTHONPATH=., or once installed" if here else ""
            raise UnknownName(f"{where}: there is no module {missing!r} (looked for in sys.path){hint}") from None
        if missing and module.startswith("agentrl."):
            raise
        relative = isinstance(raised, ImportError) and "relative import" in str(raised)
        hint = _name_in_package(Path(module).expanduser().resolve()) if relative and is_file else ""
        raise error(f"{where}: importing it raised {words(raised)}{hint}") from raised


def _name_in_package(path: Path) -> str:
    """Say how a file that imports relatively is named: as a module, where it lies in a package."""
    parts, folder = [path.stem], path.parent
    while (folder / _PACKAGE).is_file():
        parts, folder = [folder.name, *parts], folder.parent
    if len(parts) == 1:
        return f"; it is in no package (there is no {_PACKAGE} beside it): import without the leading dot"
    return f"; name it as a module of its package: PYTHONPATH={folder} and {'.'.join(parts)}:NAME"


def _file_module(path: Path, where: str) -> ModuleType:
    """Import a file under a name of its own, which stays in `sys.modules`; an edited file is a new module.

    dataclasses, pydantic and pickle look a class's module up there by its name.
    """
    if not _is_there(path):
        raise UnknownName(f"{where}: there is no file {str(path)!r}")
    path = path.resolve()
    source = _read(path)
    stamp = b"\0".join((bytes(path), source))
    stem = path.parent.name if path.name == _PACKAGE else path.stem
    name = f"{_PREFIX}{stem}_{hashlib.blake2b(stamp, digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _Loader(name, ImportedFile(str(path), source), folder_of(path))
    module = sys.modules[name] = importlib.util.module_from_spec(loader.spec())
    folder, token = _working_directory(), _imported.set(path)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _imported.reset(token)
        _return_to(folder, path)
    return module


def refuse_within_import(function: str) -> None:
    """Refuse a call that a file makes while it is imported by its path: each process that imports it would make it."""
    if (path := _imported.get()) is not None:
        guard = 'if __name__ == "__main__":'
        raise ConfigError(f"{path} calls {function} where it is imported: put the call under `{guard}`")


def _working_directory() -> str:
    """The working directory; '' where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _return_to(folder: str, path: Path) -> None:
    """Undo a change of the working directory by an import: all paths of a run would mean something else."""
    if folder and (there := _working_directory()) != folder:
        os.chdir(folder)
        _log.warning("importing %s changed the working directory to %s: it is %s again", path, there, folder)


def folder_of(path: Path) -> Path:
    """The folder from which a file imports what lies beside it; of a package's `__init__.py` the one that it is in."""
    return path.parent.parent if path.name == _PACKAGE else path.parent


class _Loader(SourceFileLoader):
    """Runs a file that imports what lies in a folder."""

    def __init__(self, name: str, file: ImportedFile, folder: Path) -> None:
        super().__init__(name, file.path)
        self.file, self._folder = file, folder

    def spec(self) -> ModuleSpec:
        path = Path(self.path)
        spec = ModuleSpec(self.name, self, origin=self.path, is_package=path.name == _PACKAGE)
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(path.parent))
        return spec

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _Beside(self._folder)}
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source: bytecode on disk passes for new after an edit of equal size within a second."""
        return compile(self.file.source, self.file.path, "exec", dont_inherit=True)


class _Packages(importlib.abc.MetaPathFinder):
    """Finds the modules of packages that lie beside a file: they import what the file may, each other by full names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, inner = fullname.partition(".")
        package = sys.modules.get(top)
        if not inner or not top.startswith(_PREFIX) or package is None or package.__file__ is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            file = Path(spec.loader.path)
            spec.loader = _Loader(fullname, ImportedFile(str(file), _read(file)), folder_of(Path(package.__file__)))
        return spec


sys.meta_path.insert(0, _Packages())


class _Beside:
    """`__import__` of a file: as Python's own, and of what that does not find what lies in the file's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        try:
            return builtins.__import__(name, globals, locals, fromlist, level)
        except ModuleNotFoundError as error:
            top, _, inner = name.partition(".")
            place = _place(self._folder, top)
            if level or error.name != top or place is None:
                raise
        there = _file_module(place, f"import {name}").__name__
        return builtins.__import__(f"{there}.{inner}" if inner else there, None, None, fromlist)


def _place(folder: Path, name: str) -> Path | None:
    places = (folder / f"{name}.py", folder / name / _PACKAGE)
    return next((each for each in places if _is_there(each)), None)


def _is_there(path: Path) -> bool:
    return path.is_file() or str(path.resolve()) in _given


def _read(path: Path) -> bytes:
    """A file's source: as another process imported it, or as it is."""
    source = _given.get(str(path))
    return path.read_bytes() if source is None else source


def sources(path: Path) -> tuple[dict[str, Path], set[str]]:
    """A file and what it imports from beside itself, also within functions, by their paths from `folder_of` it.

    They are read, not run. A package counts whole.

    Returns:
        The files, and the names that are imported and lie nowhere.
    """
    folder = folder_of(path)
    found: dict[str, Path] = {}
    missing: set[str] = set()
    ahead = [path]
    while ahead:
        file = ahead.pop()
        if (name := file.relative_to(folder).as_posix()) in found:
            continue
        found[name] = file
        if file.name == _PACKAGE:
            ahead += (each for each in file.parent.rglob("*.py") if "/." not in each.relative_to(folder).as_posix())
        for top in _list_imports(file):
            place = _place(folder, top)
            if place is None and not _find_installed(top):
                missing.add(top)
            elif place is not None and _find_installed(top) in (None, place.resolve()):
                ahead.append(place)
    return found, missing


def _list_imports(file: Path) -> set[str]:
    """The first parts of the names that a file imports, but for relative ones; none where it is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    nodes = list(ast.walk(tree))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in names}


def _find_installed(name: str) -> Path | None:
    """The file, or what stands for it, of a module that Python itself finds."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None else Path(spec.origin or name).resolve()


def files() -> dict[str, ImportedFile]:
    """The files that this process has imported by their paths, by the names of their modules."""
    specs = {name: module.__spec__ for name, module in sys.modules.items() if name.startswith(_PREFIX)}
    return {name: spec.loader.file for name, spec in specs.items() if spec and isinstance(spec.loader, _Loader)}


class _Files(importlib.abc.MetaPathFinder):
    """Finds the modules of files by the names that another process has given them.

    Args:
        known: the other process's `files()`.
    """

    def __init__(self, known: Mapping[str, ImportedFile]) -> None:
        self._known = known

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        found = self._known.get(fullname)
        return None if found is None else _Loader(fullname, found, folder_of(Path(found.path))).spec()


def search_folders() -> list[str]:
    """The folders in which this process looks for modules before Python's own: its script's, and PYTHONPATH's."""
    standard = os.path.dirname(os.__file__)
    ahead = sys.path[: sys.path.index(standard)] if standard in sys.path else []
    return [os.path.join(_working_directory(), folder) for folder in ahead]


def find_files(known: Mapping[str, ImportedFile], folders: Sequence[str] = ()) -> None:
    """Import what another process has as it does.

    Args:
        known: its `files()`: they are found by their paths, and by the names that something pickled has for them.
        folders: its `search_folders()`.
    """
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    _given.update({file.path: file.source for file in known.values()})
    sys.meta_path.append(_Files(known))
