"""`agentrl init NAME --kind …`: settings that train on what an author has, and an example where there is nothing.

The settings are a file for `agentrl train -c`; words that the author gives go into it as they are.
"""

from __future__ import annotations

import json
import keyword
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from agentrl.envs.registry import ENVS, make, versions
from agentrl.errors import ConfigError

Ask = Callable[[str, str], str]
"""Asks a question that has a default, and returns the answer."""
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


class ProjectKind(StrEnum):
    """The kinds of project, by what their author has."""

    ENVIRONMENT = "environment"  # an idea: a package with an environment
    QUESTIONS = "questions"  # a file of questions and answers
    CONVERSATIONS = "conversations"  # a file of conversations to imitate
    AGENT = "agent"  # a program on an OpenAI client


@dataclass(frozen=True)
class Project:
    """A project that is to be written.

    Attributes:
        name: of the folder.
        kind: what the author has.
        data: a file or folder of the author's, or hf://OWNER/NAME; '' writes an example.
        model: what is trained.
        settings: further ones, as a tree of `agentrl train`.
    """

    name: str
    kind: ProjectKind = ProjectKind.ENVIRONMENT
    data: str = ""
    model: str = "tiny"
    settings: Mapping[str, Any] | None = None


def ask_for(name: str, given: Mapping[str, str | None], ask: Ask) -> Project:
    """Ask for what was not given: what there is, which file, which model.

    Raises:
        ConfigError: there is no such kind.
    """
    kinds = ", ".join(ProjectKind)
    kind = kind_of(given["kind"] or ask(f"What do you have: {kinds}?", ProjectKind.ENVIRONMENT.value))
    data = given["data"]
    if data is None and kind in (ProjectKind.QUESTIONS, ProjectKind.CONVERSATIONS):
        data = ask("Which file or folder, or hf://OWNER/NAME? Empty: an example is written.", "")
    model = given["model"] or ask("Which model: tiny (made for a CPU), smollm2-135m, or a folder?", "tiny")
    return Project(name, kind, data or "", model)


def kind_of(name: str) -> ProjectKind:
    """The kind of a name; ConfigError where there is none."""
    if name not in set(ProjectKind):
        raise ConfigError(f"kind = {name!r}: allowed are {', '.join(ProjectKind)}")
    return ProjectKind(name)


def write_project(project: Project, parent: Path) -> list[str]:
    """Write the project into a new folder, and return the commands to go on with, after a line that says where it is.

    Raises:
        ConfigError: the name can't be a folder's, the folder is there, can't be written, or the data can't be read.
    """
    if project.kind is ProjectKind.ENVIRONMENT:
        return _write_package(project, parent)
    check_project_name(project.name)
    folder = parent / project.name
    if folder.exists():
        raise ConfigError(f"{str(folder)!r} is there already: choose another name, or remove it")
    tree = _settings(project, folder)
    if project.data and project.kind is ProjectKind.QUESTIONS:
        make("questions", **tree["env"]["options"]).tasks("train")  # what is wrong with the file is said now
    try:
        folder.mkdir(parents=True)
        for name, text in _examples(project).items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "run.yaml").write_text(_head(project, folder) + yaml.safe_dump(_flat(tree), sort_keys=False))
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} can't be written: {error.strerror}") from None
    run = shlex.quote(os.fspath(folder / "run.yaml"))
    played = [] if project.kind is ProjectKind.CONVERSATIONS else [f"agentrl eval -c {run} policy=expert"]
    return [
        f"{folder} has settings that train; change them in {folder / 'run.yaml'}. Next:",
        *(played if project.kind is ProjectKind.QUESTIONS else []),
        f"agentrl train -c {run} dry_run=true",
        f"agentrl train -c {run}",
        "agentrl view runs/",
    ]


def _write_package(project: Project, parent: Path) -> list[str]:
    if project.data or project.settings:
        raise ConfigError("an environment's package takes no data and no settings: write them into it")
    folder = init_package(project.name, parent)
    model = "" if project.model == "tiny" else f" model={shlex.quote(project.model)}"
    module = folder / project.name.replace("-", "_") / "env.py"
    return [
        f"{folder} has an environment that works; change it in {module}. Next:",
        f"pip install -e {shlex.quote(f'{folder}[test]')}",
        f"agentrl check env={project.name}",
        f"agentrl play env={project.name}",
        f"agentrl train env={project.name}{model}",
    ]


def _settings(project: Project, folder: Path) -> dict[str, Any]:
    """The project's settings as a tree; an environment's own options are below `env.options`."""
    given = {name: value for name, value in (project.settings or {}).items() if name != "env"}
    if project.kind is ProjectKind.CONVERSATIONS:
        data = project.data or os.fspath(folder / "conversations.jsonl")
        return {"data": data, "algo": "sft", "model": project.model, "steps": 30, **given}
    own = (project.settings or {}).get("env") or {}
    options = {"path": project.data or os.fspath(folder / "questions.csv"), **own}
    if not project.data:
        options.setdefault("grading", "math")
    agent = {"agent": f"{folder / 'agent.py'}:agent"} if project.kind is ProjectKind.AGENT else {}
    return {"env": {"name": "questions", "options": options}, **agent, "model": project.model, **given}


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a file has them: env.KEY beside env."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "env":
            flat |= {"env": value["name"]} | {f"env.{key}": each for key, each in value["options"].items()}
        else:
            flat[name] = value
    return flat


def _head(project: Project, folder: Path) -> str:
    return (
        f"# {project.name}: agentrl train -c {shlex.quote(os.fspath(folder / 'run.yaml'))}\n"
        "# Words on the command line change any of these; agentrl train --help lists the others.\n"
    )


def _examples(project: Project) -> dict[str, str]:
    """The files that stand beside the settings."""
    found: dict[str, str] = {}
    sums = [(left, right) for left in range(2, 10) for right in range(2, 10)]
    if project.kind is ProjectKind.CONVERSATIONS and not project.data:
        rows = [
            {"messages": [{"role": "user", "content": f"{a} + {b}?"}, {"role": "assistant", "content": f"{a + b}"}]}
            for a, b in sums
        ]
        found["conversations.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    if project.kind is not ProjectKind.CONVERSATIONS and not project.data:
        found["questions.csv"] = "question,answer\n" + "".join(f"{a} + {b}?,{a + b}\n" for a, b in sums)
    if project.kind is ProjectKind.AGENT:
        found["agent.py"] = (files("agentrl.envs") / "template" / "agent.py.tmpl").read_text(encoding="utf-8")
    return found


def in_terminal() -> bool:
    """Return whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def init_package(name: str, parent: Path) -> Path:
    """Write a package with an environment into a new folder of its name, and return the folder.

    The template is a working package called my-env: its names are replaced, and nothing else.

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
    if (spec := find_spec(module)) is not None and spec.origin:
        raise ConfigError(f"name = {name!r}: a package {module!r} is installed, whose place it would take")


def _rename(text: str, name: str) -> str:
    title = "".join(part.capitalize() for part in name.split("-"))
    return text.replace("my-env", name).replace("my_env", name.replace("-", "_")).replace("MyEnv", title)
