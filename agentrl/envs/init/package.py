"""`agentrl init my-env`: a new package with an environment, made of the files in `template`.

The template is a working package called my-env: its names are replaced, and nothing else.
"""

from __future__ import annotations

import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path

from agentrl.envs.registry import ENVS, versions
from agentrl.errors import ConfigError

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 50
VERSION = re.compile(r".*-v\d+")
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "test.yml": ".github/workflows/test.yml",
    "init.py": "my_env/__init__.py",
    "env.py": "my_env/env.py",
    "data.py": "my_env/data.py",
    "tasks.jsonl": "my_env/tasks.jsonl",
    "test_env.py": "tests/test_env.py",
}
"""The place of each file of the template."""


def init_package(name: str, parent: Path) -> Path:
    """Write the package into a new folder of its name, and return the folder.

    Raises:
        ConfigError: the name can't be a package's or is taken, or the folder is there already or can't be written.
    """
    _check_name(name)
    folder = parent / name
    if folder.exists():
        raise ConfigError(f"{str(folder)!r} is there already: choose another name, or remove it")
    template = files("agentrl.envs") / "template"
    try:
        for source, target in FILES.items():
            path = folder / _rename(target, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_rename((template / f"{source}.tmpl").read_text(encoding="utf-8"), name), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} can't be written: {error.strerror}") from None
    return folder


def check_project_name(name: str) -> None:
    """Refuse a name that no project's folder can have; ConfigError where it is one."""
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        words = f"lower-case letters and digits with single - between, at most {LONGEST} characters, as in my-env"
        raise ConfigError(f"name = {name!r}: allowed are {words}")


def _check_name(name: str) -> None:
    check_project_name(name)
    module = name.replace("-", "_")
    if VERSION.fullmatch(name):
        raise ConfigError(f"name = {name!r}: leave out the version; it begins as {name.rpartition('-')[0]}-v1")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("agentrl", "tests"):
        raise ConfigError(f"name = {name!r}: a package can't be called {module!r}, which Python or the tests need")
    if name in ENVS.known() or versions(name):
        raise ConfigError(f"name = {name!r}: there is an environment of that name (agentrl envs lists them)")


def _rename(text: str, name: str) -> str:
    title = "".join(part.capitalize() for part in name.split("-"))
    return text.replace("my-env", name).replace("my_env", name.replace("-", "_")).replace("MyEnv", title)
