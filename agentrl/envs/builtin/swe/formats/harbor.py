"""Tasks as directories, in Harbor's format (https://www.harborframework.com/docs/tasks).

    NAME/
        task.toml             settings; ours are below [metadata.swe], which Harbor ignores
        instruction.md        the agent's prompt
        environment/
            repo/             the repository as the agent finds it
            history/2/        files of commit 2 that were different then from what they are in repo/
            Dockerfile        the same for Harbor itself, without the history
        tests/
            repo/             hidden test files, by their path in the repository
            test.patch        or a diff that brings them
            test.sh           runs them and writes /logs/verifier/reward.txt
        solution/
            solution.patch    the reference solution
            solve.sh          applies it

The Dockerfile, test.sh and solve.sh are written for Harbor and not read back where a task has [metadata.swe], whose
tests are scored by name. A directory without that table is a task of another source: its tests/ and solve.sh are kept
as they are (`log_format="reward"`), and it needs `environment.docker_image`, or `env.image`, or `env.build=true`, which
builds its Dockerfile before it is first played (`building`). What nothing reads of its settings is told (`unread`).

Files are text: a repository with binary files needs an image.
"""

from __future__ import annotations

import base64
import logging
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.envs.builtin.swe.building import image_of
from agentrl.envs.builtin.swe.formats.toml import dumps
from agentrl.envs.builtin.swe.formats.unread import Unsupported, check_supported
from agentrl.envs.builtin.swe.task import DIFFICULTIES, Commit, SweTask
from agentrl.errors import InvalidInput

SCHEMA = "1.1"
FOREIGN_WORKDIR = "/app"
"""The default working directory of other sources' tasks: Terminal-Bench's convention."""
_WORKDIR = re.compile(r"^\s*WORKDIR\s+(\S+)", re.MULTILINE | re.IGNORECASE)
HARBOR_FIELDS = frozenset(
    {"id", "instruction", "commits", "tests", "test_patch", "solution", "solution_script"}
    | {"difficulty", "tags", "image", "timeout", "agent_timeout"}
)
"""Fields of a task that Harbor's format has itself; the others are below [metadata.swe]."""
IGNORED = frozenset({"__pycache__", ".git", ".DS_Store"})
_log = logging.getLogger(__name__)

DOCKERFILE = """\
FROM {image}
COPY --chown=1000:1000 repo {workdir}
WORKDIR {workdir}
RUN git init -q && git add -A && git -c user.name=agent -c user.email=agent@example.org commit -q -m "Import"
"""
TEST_SH = """\
#!/bin/bash
# Lays the hidden tests over the repository, runs all tests, and writes the reward where Harbor looks for it.
cd {workdir} && cp -r /tests/repo/. . || exit 1
mkdir -p /logs/verifier
if {command}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLVE_SH = """\
#!/bin/bash
cd {workdir} && git apply /solution/solution.patch
"""


def read(folder: Path | str, image: str | None = None, build: bool = False) -> SweTask:
    """Read a task's directory; its name is the task's id.

    Args:
        folder: the directory.
        image: the name of the image of a task of another source, in place of its own; {id} stands for the task's id.
        build: whether such a task's image is the one that its Dockerfile makes.

    Raises:
        Unsupported: a task of another source needs what is not supported here.
        InvalidInput: a file is missing or no text, or a field is wrong; the message names it.
    """
    folder = Path(folder)
    text = read_text(folder / "task.toml")
    try:
        settings = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise InvalidInput(f"{folder / 'task.toml'}: {error}") from None
    metadata = _table(settings, "metadata", folder)
    environment = _table(settings, "environment", folder)
    placed = {
        "difficulty": metadata.get("difficulty"),
        "tags": metadata.get("tags"),
        "image": environment.get("docker_image"),
        "timeout": _table(settings, "verifier", folder).get("timeout_sec"),
        "agent_timeout": _table(settings, "agent", folder).get("timeout_sec"),
    }
    fields: dict[str, Any] = {"id": folder.name, "instruction": read_text(folder / "instruction.md")}
    fields |= {name: value for name, value in placed.items() if value is not None}
    if "swe" in metadata:
        fields |= _ours(folder, dict(_table(metadata, "swe", folder)))
    else:
        check_supported(folder, settings)
        if fields.get("difficulty") not in DIFFICULTIES:
            fields.pop("difficulty", None)
        fields |= _foreign(folder, settings, image, build)
    return SweTask.build(fields)


def read_all(folder: Path | str, image: str | None = None, build: bool = False) -> list[SweTask]:
    """Every task of a folder of directories, by name; directories without a task.toml are left out; see `read`.

    Tasks that are not supported are left out and named in the log.

    Raises:
        InvalidInput: there is no task that is supported, or one of them is wrong.
    """
    found = sorted(path.parent for path in Path(folder).glob("*/task.toml"))
    if not found:
        raise InvalidInput(f"{str(folder)!r} holds no task: allowed: a folder of directories with a task.toml each")
    tasks, refused = list[SweTask](), list[str]()
    for path in found:
        try:
            tasks.append(read(path, image, build))
        except Unsupported as error:
            refused.append(str(error))
    if not tasks:
        raise InvalidInput(f"{str(folder)!r} holds no task that can be played: {'; '.join(refused[:3])}")
    if refused:
        _log.warning("%d tasks of %s are left out: %s", len(refused), folder, "; ".join(refused[:3]))
    return tasks


def write(task: SweTask, folder: Path | str) -> None:
    """Write a task's directory; `folder` is to be new or empty, and named like the task for `read` to find its id.

    Raises:
        InvalidInput: there is something in it already.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{str(folder)!r} is not empty: allowed: a new or an empty folder")
    for path, text in sorted(_files(task).items()):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
        if path.endswith(".sh"):
            target.chmod(0o755)


def _files(task: SweTask) -> dict[str, str]:
    files = {"task.toml": dumps(_settings(task)), "instruction.md": task.instruction}
    final = task.files
    files |= {f"environment/repo/{path}": text for path, text in final.items()}
    for number, commit in enumerate(task.commits, 1):
        older = {path: text for path, text in commit.files.items() if text is not None and text != final.get(path)}
        files |= {f"environment/history/{number}/{path}": text for path, text in older.items()}
    workdir = shlex.quote(task.workdir)
    if task.commits:
        files["environment/Dockerfile"] = DOCKERFILE.format(image=task.image or "agentrl/base", workdir=task.workdir)
    if task.log_format == "reward":
        files |= {f"tests/{path}": text for path, text in task.tests.items()}
    else:
        files |= {f"tests/repo/{path}": text for path, text in task.tests.items()}
        command = " ".join([task.test_command, *map(shlex.quote, sorted(task.test_files))])
        files["tests/test.sh"] = TEST_SH.format(workdir=workdir, command=command)
    if task.test_patch:
        files["tests/test.patch"] = task.test_patch
    if task.solution:
        files["solution/solution.patch"] = task.solution
        files["solution/solve.sh"] = SOLVE_SH.format(workdir=workdir)
    if task.solution_script:
        files["solution/solve.sh"] = task.solution_script
    return files


def _settings(task: SweTask) -> dict[str, Any]:
    ours = task.model_dump(mode="json", exclude=set(HARBOR_FIELDS), exclude_defaults=True)
    metadata: dict[str, Any] = {"difficulty": task.difficulty, "tags": list(task.tags)}
    if task.log_format != "reward":
        commits = [_entry(commit, task.files) for commit in task.commits]
        metadata["swe"] = ours | ({"commits": commits} if commits else {})
    environment = {"docker_image": task.image} if task.image else {}
    if task.log_format == "reward" and task.workdir != FOREIGN_WORKDIR:
        environment["workdir"] = task.workdir
    return {
        "schema_version": SCHEMA,
        "task": {"name": f"agentrl/{task.id}"},
        "metadata": metadata,
        "verifier": {"timeout_sec": task.timeout}
        | ({"env": task.env} if task.env and task.log_format == "reward" else {}),
        "agent": {"timeout_sec": task.agent_timeout},
        "environment": environment,
    }


def _entry(commit: Commit, final: Mapping[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"message": commit.message, "author": commit.author, "time": commit.time}
    added = [path for path, text in sorted(commit.files.items()) if text is not None and text == final.get(path)]
    removed = [path for path, text in sorted(commit.files.items()) if text is None]
    return entry | ({"add": added} if added else {}) | ({"remove": removed} if removed else {})


def _ours(folder: Path, swe: dict[str, Any]) -> dict[str, Any]:
    repo = dict(tree(folder / "environment" / "repo"))
    left = set(repo)
    commits = []
    for number, entry in enumerate(swe.pop("commits", []), 1):
        entry = dict(entry)
        files: dict[str, str | None] = dict.fromkeys(entry.pop("remove", []))
        for path in entry.pop("add", []):
            if path not in repo:
                raise InvalidInput(f"{folder}: commit {number} adds {path!r}: allowed: a file below environment/repo")
            files[path] = repo[path]
            left.discard(path)
        files |= tree(folder / "environment" / "history" / str(number))
        commits.append({**entry, "files": files})
    if left:
        raise InvalidInput(f"{folder}: no commit adds environment/repo/{min(left)}: allowed: every file in some `add`")
    fields: dict[str, Any] = {**swe, "commits": commits, "tests": dict(tree(folder / "tests" / "repo"))}
    patches = {"test_patch": "tests/test.patch", "solution": "solution/solution.patch"}
    if not (folder / "solution" / "solution.patch").is_file():
        patches["solution_script"] = "solution/solve.sh"
    return fields | {name: read_text(folder / path) for name, path in patches.items() if (folder / path).is_file()}


def _foreign(folder: Path, settings: Mapping[str, Any], image: str | None, build: bool) -> dict[str, Any]:
    environment = _table(settings, "environment", folder)
    if image is None and not build and "docker_image" not in environment:
        raise InvalidInput(
            f"{folder / 'task.toml'}: environment.docker_image is missing: allowed: the name of an image built from "
            "environment/ (docker build -t NAME environment), here or as env.image, env.build=true, which builds it "
            "(its commands need a network), or a table [metadata.swe]"
        )
    context = folder / "environment"
    named = image_of(context, folder.name) if build else image and image.replace("{id}", folder.name)
    try:
        tests, solution = dict(tree(folder / "tests")), dict(tree(folder / "solution"))
    except InvalidInput as error:
        raise Unsupported(str(error)) from None
    return {
        **({} if named is None else {"image": named}),
        "log_format": "reward",
        "workdir": environment.get("workdir") or workdir_of(context / "Dockerfile"),
        "tests": tests,
        "env": dict(_table(_table(settings, "verifier", folder), "env", folder)),
        "solution_script": _script(solution),
    }


def _script(solution: Mapping[str, str]) -> str:
    """The reference solution as one script; files beside solve.sh are put into /solution, as Harbor does."""
    main = solution.get("solve.sh", "")
    if len(solution) < 2 or not main:
        return main
    lines = []
    for path, text in solution.items():
        place = shlex.quote(f"/solution/{path}")
        coded = base64.b64encode(text.encode()).decode()
        lines.append(f"mkdir -p \"$(dirname {place})\" && base64 -d > {place} <<'END'\n{coded}\nEND")
    return "\n".join([*lines, "bash /solution/solve.sh"])


def workdir_of(dockerfile: Path) -> str:
    """The last absolute directory but / that a Dockerfile makes the working one; `FOREIGN_WORKDIR` without any."""
    places = _WORKDIR.findall(read_text(dockerfile)) if dockerfile.is_file() else []
    return next((place.rstrip("/") for place in places[::-1] if place.strip("/") and place[0] == "/"), FOREIGN_WORKDIR)


def tree(folder: Path) -> Iterator[tuple[str, str]]:
    """The files below a folder by their paths in it, but for caches and the like."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and IGNORED.isdisjoint(path.relative_to(folder).parts):
            yield path.relative_to(folder).as_posix(), read_text(path)


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        InvalidInput: it can't be read, or is no UTF-8.
    """
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is no UTF-8 text: allowed: text files") from None


def _table(settings: Mapping[str, Any], name: str, folder: Path) -> Mapping[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, Mapping):
        raise InvalidInput(f"{folder / 'task.toml'}: {name} is {table!r}: allowed: a table")
    return table
