"""Tasks in Terminal-Bench's format before version 2 (https://github.com/laude-institute/terminal-bench), read only.

    NAME/
        task.yaml             instruction, difficulty, tags, time limits, parser_name
        Dockerfile            the container that the agent works in, and its working directory
        docker-compose.yaml   the container's service, `client`; further services are not supported
        run-tests.sh          runs the tests
        tests/                what it finds in $TEST_DIR
        solution.sh           the reference solution

The image is the one that the project's own command builds (`tb tasks build`), tb__NAME__client, the one that
`env.image` names, or with `env.build=true` the one that the Dockerfile makes. A task is solved where pytest's summary
of its tests has a test and none that failed, which is what the project's harness asks. Later versions have Harbor's
format; see `harbor`.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agentrl.envs.builtin.swe.building import image_of
from agentrl.envs.builtin.swe.formats.harbor import read_text, tree, workdir_of
from agentrl.envs.builtin.swe.task import DIFFICULTIES, SweTask
from agentrl.errors import InvalidInput

FILE = "task.yaml"
CLIENT = "client"
"""The service that the agent works in."""
PARSER = "pytest"
AGENT_SECONDS, TEST_SECONDS = 360.0, 60.0
"""The format's own defaults."""
TEST_SH = """\
#!/bin/bash
# Runs the task's own tests. All of pytest's summary must have passed, as the format's harness decides.
export TEST_DIR=/tests
mkdir -p /logs/verifier
cd {workdir} && bash /tests/run-tests.sh > /logs/verifier/run.log 2>&1
awk '/short test summary info/ {{ on = 1 }}
     on && /^(PASSED|XFAIL|SKIPPED)/ {{ good++ }}
     on && /^(FAILED|ERROR|XPASS)/ {{ bad++ }}
     END {{ print (good && !bad) ? 1 : 0 }}' /logs/verifier/run.log > /logs/verifier/reward.txt
"""
_log = logging.getLogger(__name__)


def holds(folder: Path) -> bool:
    """Return whether a folder is a task of this format, or holds some."""
    return (folder / FILE).is_file() or any(folder.glob(f"*/{FILE}"))


def read(folder: Path | str, image: str | None = None, build: bool = False) -> SweTask:
    """Read a task's directory; its name is the task's id.

    Args:
        folder: the directory.
        image: the name of its image; {id} stands for the task's id. None is the one that `tb tasks build` makes.
        build: whether it is the one that its Dockerfile makes.

    Raises:
        InvalidInput: a file is missing or no text, a field is wrong, or the task needs what is not supported.
    """
    folder = Path(folder)
    settings = _mapping(folder / FILE)
    _supported(folder, settings)
    workdir = workdir_of(folder / "Dockerfile")
    difficulty = settings.get("difficulty")
    solution = folder / "solution.sh"
    named = (image or "tb__{id}__client").replace("{id}", folder.name.replace(".", "-"))
    return SweTask.build(
        {
            "id": folder.name,
            "instruction": _instruction(folder, settings),
            "difficulty": difficulty if difficulty in DIFFICULTIES else "medium",
            "tags": tuple(map(str, settings.get("tags") or ())),
            "image": image_of(folder, folder.name) if build else named,
            "workdir": workdir,
            "log_format": "reward",
            "tests": {
                **dict(tree(folder / "tests")),
                "run-tests.sh": read_text(folder / "run-tests.sh"),
                "test.sh": TEST_SH.format(workdir=shlex.quote(workdir)),
            },
            "solution_script": read_text(solution) if solution.is_file() else "",
            "timeout": settings.get("max_test_timeout_sec") or TEST_SECONDS,
            "agent_timeout": settings.get("max_agent_timeout_sec") or AGENT_SECONDS,
        }
    )


def read_all(folder: Path | str, image: str | None = None, build: bool = False) -> list[SweTask]:
    """Every task of a folder of directories, or of one task's; those that are not supported are named in the log.

    Raises:
        InvalidInput: there is no task that can be read.
    """
    folder = Path(folder)
    if (folder / FILE).is_file():
        return [read(folder, image, build)]
    tasks, refused = [], []
    for path in sorted(found.parent for found in folder.glob(f"*/{FILE}")):
        try:
            tasks.append(read(path, image, build))
        except InvalidInput as error:
            refused.append(str(error))
    if not tasks:
        raise InvalidInput(
            f"{str(folder)!r} holds no task that can be read: {'; '.join(refused[:3]) or 'no task.yaml'}"
        )
    if refused:
        _log.warning("%d tasks of %s are left out: %s", len(refused), folder, "; ".join(refused[:3]))
    return tasks


def _instruction(folder: Path, settings: Mapping[str, Any]) -> Any:
    if "instruction" in settings:
        return settings["instruction"]
    older = {entry.get("key"): entry.get("description") for entry in settings.get("descriptions") or ()}
    if "base" not in older:
        raise InvalidInput(f"{folder / FILE}: instruction is missing")
    return older["base"]


def _supported(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise InvalidInput where a task needs more than one container, or another reading of its tests' log."""
    parser = settings.get("parser_name", PARSER)
    if parser != PARSER:
        raise InvalidInput(f"{folder / FILE}: parser_name = {parser!r}: allowed: {PARSER}")
    compose = folder / "docker-compose.yaml"
    services = (_mapping(compose).get("services") or {}) if compose.is_file() else {CLIENT: None}
    if set(services) != {CLIENT}:
        raise InvalidInput(f"{compose}: the services {', '.join(sorted(services))}: allowed: {CLIENT} alone")


def _mapping(path: Path) -> Mapping[str, Any]:
    text = read_text(path)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or a number that is none
        raise InvalidInput(f"{path}: {error}") from None
    if not isinstance(found, Mapping):
        raise InvalidInput(f"{path} holds {type(found).__name__}: allowed: a mapping")
    return found
