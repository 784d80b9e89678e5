"""The rule about other circumstances: tasks and episodes are the same in another process, wherever and whenever.

Another process plays them with another order of hashes, on another day, in another folder, time zone and locale, all at
once. Where something differs, further processes, of which two are alike, change one of these at a time: so the finding
names what it depends on.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.envs.check.elsewhere import MARK, episodes, write_value
from agentrl.envs.check.findings import Note
from agentrl.envs.check.subject import Subject
from agentrl.tools.schema import show_value

SECONDS = 90.0
"""For a process."""
FIXES = {
    "hashes": "the order of a set or hash() of a text: sort what comes from a set, and use zlib.crc32 or hashlib",
    "date": "the time of day or the date: take the time from the task's data; time.monotonic() measures durations",
    "folder": "the working directory: build paths from __file__, or take them as an option",
    "time zone": "the time zone: use datetime.UTC, or a fixed zone",
    "locale": "the locale or the encoding of the machine: give encoding='utf-8' to open(), and sort without locale",
    "process": "the process itself, such as id(), os.getpid() or a global generator: seed one generator in `reset`",
}
"""The change that an author makes, by the circumstance."""
ORDER = ("process", "hashes", "date", "folder", "time zone", "locale")


async def elsewhere(subject: Subject) -> AsyncIterator[str | Note]:
    """Tasks and episodes are the same in another process, on another day, in another folder, time zone and locale.

    It is checked where the environment has a name.
    """
    job = _job(subject)
    if job is None or "not deterministic" in subject.notes:
        return
    tasks = subject.scored or subject.tasks
    listed = {split: [task.model_dump() for task in each] for split, (each, _) in subject.splits.items()}
    here = {"tasks": listed, "episodes": list(await episodes(subject.make, tasks, subject.seed, 5.0))}
    job["played"] = list(dict.fromkeys(id_ for id_, _, _ in here["episodes"]))
    order = [one for one in ORDER if one != "locale" or _has_plain_paths(job)]
    if len(order) < len(ORDER):
        yield Note("another locale was not tried: it can't name a path that has other letters than ASCII's")
    there = await _process(job, order)
    if there is not None and "error" in there:  # libraries in C may fail where the clock's classes are replaced
        error, there = there["error"], await _process(job, [one for one in order if one != "date"])
        if there is not None and "error" not in there:
            yield Note(
                f"another date was not tried: with a replaced clock the process ended ({show_value(error, 120)})"
            )
    if there is None:
        yield Note(f"other circumstances were not compared: the other process said nothing in {SECONDS:g} s")
    difference = _difference(here, there)
    if not difference:
        return
    alike = await _process(job, ())
    changed = [one for one in order if alike is not None and _difference(alike, await _process(job, (one,)))]
    changed = ["process"] if "process" in changed or alike is None else changed
    names = " and ".join(FIXES[one] for one in changed) or f"{', '.join(order)}, where several of these change at once"
    yield f"{difference}; it depends on {names}"


def _job(subject: Subject) -> dict[str, Any] | None:
    """Return what another process is told; None where it could not make the environment."""
    if (name := subject.name) is None:
        return None
    try:
        options = json.loads(json.dumps({key: _absolute(value) for key, value in subject.options.items()}))
    except (TypeError, ValueError):
        return None  # options that only this process has
    file, colon, rest = name.partition(":")
    most = max((len(listed) for listed, _ in subject.splits.values()), default=0)
    return {"name": f"{_absolute(file)}{colon}{rest}", "options": options, "most": most, "seed": subject.seed}


def _has_plain_paths(job: Mapping[str, Any]) -> bool:
    paths = [
        job["name"],
        *(value for value in job["options"].values() if isinstance(value, str) and os.path.isabs(value)),
    ]
    return all(path.isascii() for path in paths)


def name_of(env: object) -> str | None:
    """The name by which another process can make an environment; None for a factory, whose options are its own."""
    if isinstance(env, str) or not isinstance(env, type):
        return env if isinstance(env, str) else None
    return _import_path(env)


def _import_path(cls: type) -> str | None:
    """`module:Class`, where that is what it is."""
    found = getattr(sys.modules.get(cls.__module__), cls.__qualname__, None)
    return f"{cls.__module__}:{cls.__qualname__}" if found is cls and cls.__module__ != "__main__" else None


def _absolute(value: Any) -> Any:
    """A path that exists, from any folder."""
    relative = isinstance(value, (str, Path)) and str(value) and os.path.exists(value)
    return os.path.abspath(value) if relative else value


async def _process(job: Mapping[str, Any], changed: Sequence[str]) -> Mapping[str, Any] | None:
    """Return what a process says in which these circumstances are others; None where it says nothing."""
    text = json.dumps({**job, "date": "date" in changed})
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentrl.envs.check.elsewhere", text),
            env=_variables(changed),
            cwd=folder if "folder" in changed else None,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            written, errors = await asyncio.wait_for(process.communicate(), SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            return None
    found = [line for line in written.splitlines() if line.startswith(MARK.encode())]
    if found:
        return dict(json.loads(found[-1].removeprefix(MARK.encode())))
    last = _read_error(errors.decode(errors="replace"))
    return {"tasks": {}, "episodes": [], "error": last} if process.returncode else None


def _read_error(errors: str) -> str:
    lines = errors.strip().splitlines() or [""]
    named = [line for line in lines if line[:1].isalpha() and not line.startswith(("Traceback", "During", "The above"))]
    return (named or lines)[-1]


def _variables(changed: Sequence[str]) -> dict[str, str]:
    """The variables of a process in which these circumstances are others."""
    paths = os.pathsep.join(os.path.abspath(path or os.getcwd()) for path in sys.path)
    variables = {**os.environ, "PYTHONPATH": paths}
    variables["PYTHONHASHSEED"] = "4049" if "hashes" in changed else "0"
    if "time zone" in changed:
        variables["TZ"] = "XYZ-5:45"
    if "locale" in changed:
        variables.update({name: _other_locale() for name in ("LC_ALL", "LANG", "LANGUAGE")})
        variables.update(PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    return variables


def _other_locale() -> str:
    """Another locale that this machine has, or one that it lacks: then texts are ASCII, as in many containers."""
    try:
        listed = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        listed = []
    others = [name for name in listed if not name.startswith(("C", "POSIX", "en"))]
    return others[0] if others else "de_DE"


def _difference(here: Mapping[str, Any], there: Mapping[str, Any] | None) -> str:
    """Return what the other process has otherwise; '' where nothing is."""
    if there is None:
        return ""
    if error := there.get("error"):
        return f"in another process it can't be made: {error}"
    for split, tasks in there["tasks"].items():
        own = json.loads(write_value(here["tasks"].get(split, [])))
        for index, (one, other) in enumerate(zip(own, tasks, strict=False)):
            if one != other:
                where = f"split {split!r}, index {index}"
                return f"{where}: {show_value(one, 120)} here and {show_value(other, 120)} in another process"
    played = {(id_, agent): entries for id_, agent, entries in there["episodes"]}
    for id_, agent, entries in json.loads(write_value(here["episodes"])):
        other = played.get((id_, agent), entries)
        for place, (one, two) in enumerate(zip(entries, other, strict=False)):
            if one != two:
                where = f"task {id_!r}, the {agent}'s episode, entry {place}"
                return f"{where}: {show_value(one, 120)} here and {show_value(two, 120)} in another process"
        if len(entries) != len(other):
            return f"task {id_!r}, the {agent}'s episode: {len(entries)} entries here and {len(other)} elsewhere"
    return ""
