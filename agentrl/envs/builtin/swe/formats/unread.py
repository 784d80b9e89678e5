"""Settings of published tasks that nothing here reads, in words; and those that make a task unplayable.

The fields are those of Harbor's task.toml (schema 1.1 and later, https://www.harborframework.com/docs/tasks) and of
Terminal-Bench's task.yaml. One that says what we do anyway, or nothing, is not told.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import InvalidInput

READ = frozenset(
    {
        *("verifier.timeout_sec", "verifier.env", "agent.timeout_sec"),
        *("environment.docker_image", "environment.workdir", "environment.build_timeout_sec"),
        *("instruction", "descriptions", "difficulty", "tags", "parser_name"),
        *("max_agent_timeout_sec", "max_test_timeout_sec"),
    }
)
ABOUT = frozenset(
    {
        *("schema_version", "version", "task", "metadata", "source"),
        *("author_name", "author_email", "category", "disable_asciinema", "estimated_duration_sec"),
        *("expert_time_estimate_min", "junior_time_estimate_min"),
    }
)
"""Fields that say something about a task, and change nothing in how it is played."""
TABLES = ("verifier", "agent", "environment", "solution")
SAME: Mapping[str, Any] = {"network_mode": "no-network", "environment_mode": "shared"}
"""Values, by the last part of a field's name, that say what a sandbox is like anyway."""
NETWORK = ("environment.allow_internet", "environment.network_mode", "verifier.network_mode", "agent.network_mode")


class Unsupported(InvalidInput):
    """A task that others can play, and `env=swe` can't."""


def check_supported(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise where a task of Harbor's needs more than one instruction, one container and tests that run in it.

    Raises:
        Unsupported: it does; the message says what.
    """
    where = folder / "task.toml"
    if steps := settings.get("steps"):
        raise Unsupported(f"{where}: it has {len(steps)} steps: allowed: tasks of one instruction")
    verifier = settings.get("verifier")
    if isinstance(verifier, Mapping) and verifier.get("environment_mode", "shared") != "shared":
        raise Unsupported(f"{where}: verifier.environment_mode = {verifier['environment_mode']!r}: allowed: 'shared'")
    if (compose := folder / "environment" / "docker-compose.yaml").is_file():
        raise Unsupported(f"{compose}: allowed: a Dockerfile alone, since a task has one container")


def fields(settings: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a task that nothing reads and that are not empty."""
    for name, value in settings.items():
        inner = value.items() if name in TABLES and isinstance(value, Mapping) else ()
        found = [(f"{name}.{key}", each) for key, each in inner] if name in TABLES else [(name, value)]
        for field, given in found:
            same = SAME.get(field.rpartition(".")[2])
            if given and given != same and field not in READ and field not in ABOUT:
                yield field


def describe_unread(folder: Path, names: Iterable[str]) -> str:
    """Describe the fields of a folder's tasks that nothing reads, each with its number of tasks; empty without any.

    Args:
        folder: of tasks, or of one.
        names: the tasks'.
    """
    number = Counter(field for name in names for field in fields(_settings(folder, name)))
    if not number:
        return ""
    words = ", ".join(f"{field} ({count:,})" for field, count in sorted(number.items()))
    network = "; a sandbox has no network" if any(field in NETWORK for field in number) else ""
    return f"; fields that are not read: {words}{network}"


def _settings(folder: Path, name: str) -> Mapping[str, Any]:
    for own in (folder, folder / name):
        if (file := own / "task.toml").is_file():
            return tomllib.loads(file.read_text(encoding="utf-8"))
        if (file := own / "task.yaml").is_file():
            return dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    return {}
