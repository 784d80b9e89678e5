"""The identity of a run's data: the count of each split's tasks, and digests of their ids and of their content.

A group's task is an index into its split, so an index means another task once the data has changed. What is in memory
is digested as a whole. Of a sequence that is read lazily, and longer than `SAMPLED`, as many tasks are, evenly spread,
the first and the last among them: a file of any size takes a moment, its growth is noticed by the count, and a change
of a single row may not be. Other sources may be endless: they are known by their first tasks alone (`BEGINNING`), and
one that begins otherwise each time by nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import orjson

from agentrl.common.untrusted import safe_json
from agentrl.envs import calls
from agentrl.envs.attribution import blamed
from agentrl.envs.base import Env
from agentrl.envs.data.mixture import Mixture
from agentrl.envs.data.splits import TaskList
from agentrl.types import Task

KEY = "data"
"""Under which identities are stored: in a line of a run's `starts.jsonl`, in an evaluation's `result.json`."""
SAMPLED = 4096
"""Tasks of a longer, lazily read sequence that are digested."""
BEGINNING = 16
"""Tasks of a source without a length that are digested."""
FIRST = 3
"""Ids that are shown."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identification of a split's tasks.

    Attributes:
        tasks: how many there are; None where the source has no length.
        ids: a digest of the ids, in order, 16 hexadecimal digits; '' where the source begins otherwise each time.
        content: likewise of ids and data.
        examined: how many tasks the digests are of.
        first: the first ids.
        notes: how the tasks were chosen, in sentences, as a `TaskList` has them; two identities may differ in them.
    """

    tasks: int | None
    ids: str
    content: str
    examined: int
    first: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Identity:
        return cls(**{**data, "first": tuple(data["first"]), "notes": tuple(data.get("notes", ()))})

    def json(self) -> dict[str, Any]:
        """As it is stored."""
        return {**asdict(self), "first": list(self.first), "notes": list(self.notes)}

    def __str__(self) -> str:
        shown = ", ".join(self.first)
        if not self.ids:
            return f"a source that begins otherwise each time ({shown}, …), which nothing identifies"
        if self.tasks is None:
            return f"a source without a length ({shown}, …; its first {self.examined}: {self.content})"
        more = ", …" if self.tasks > len(self.first) else ""
        of = "" if self.examined == self.tasks else f"{self.examined:,} of them: "
        return f"{self.tasks:,} task{'s' * (self.tasks != 1)} ({shown}{more}; {of}{self.content})"

    def difference(self, other: Identity) -> str:
        """Describe the changes from this to another one; '' where there are none, or nothing identifies one of them."""
        if self == other or not (self.ids and other.ids):
            return ""
        if self.tasks is not None and other.tasks is not None and self.tasks != other.tasks:
            return f"{self.tasks:,} tasks ({self.content}), and now {other.tasks:,} ({other.content})"
        if self.ids == other.ids and self.examined == other.examined:
            return f"other content under the same ids ({self.content}, and now {other.content})"
        return f"{self}, and now {other}"


Identities = dict[str, Identity]
"""By split, or `PART/SPLIT` of a mixture."""


def of_splits(env: Env, splits: Iterable[str]) -> Identities:
    """The identities of an environment's splits; EnvError where its code failed."""
    found: Identities = {}
    parts = {f"{name}/": part.env for name, part in env.parts.items()} if isinstance(env, Mixture) else {"": env}
    data: dict[str, list[bytes]] = {}
    chosen = dict.fromkeys(splits)
    for split in chosen:
        for prefix, own in parts.items():
            name = f"{prefix}{split}"
            digests = data[name] = []
            found[name] = of_split(own, split, digests if "train" in chosen and len(chosen) > 1 else None)
            if split not in ("train", "demo") and (note := _overlap(name, digests, data.get(f"{prefix}train", []))):
                found[name] = replace(found[name], notes=(*found[name].notes, note))
    return found


def _overlap(name: str, data: Sequence[bytes], trained: Sequence[bytes]) -> str:
    """Return how many tasks of a split have the same data as training tasks, in words; '' where none has."""
    known = set(trained)
    shared = sum(each in known for each in data)
    return (
        f"{shared:,} of {len(data):,} tasks of {name!r} have the same data as tasks that are trained" if shared else ""
    )


def of_split(env: Env, split: str, data: list[bytes] | None = None) -> Identity:
    """The identity of a split; see the module's docstring.

    Args:
        env: has it.
        split: its name.
        data: gets a digest of the data of each examined task of a source with a length, its id left out.
    """
    with blamed(env, "tasks"):
        source = calls.list_tasks(env, split)
    if isinstance(source, Sequence):
        found = _digest(_choose(env, split, source), len(source), data)
        return replace(found, notes=(*source.notes, *found.notes)) if isinstance(source, TaskList) else found
    begun = list(islice(calls.tasks(env, split), BEGINNING))
    found = _digest(begun, len(begun) if len(begun) < BEGINNING else None)
    if _digest(islice(calls.tasks(env, split), BEGINNING), found.tasks) != found:
        return Identity(found.tasks, "", "", 0, found.first)
    return found


def of_tasks(tasks: Sequence[Task]) -> Identity:
    """The identity of tasks that are no environment's; see the module's docstring."""
    return _digest(tasks, len(tasks))


def differences(before: Identities, now: Identities) -> list[str]:
    """Describe the changes, a sentence for each split that both have."""
    changed = {split: before[split].difference(now[split]) for split in before if split in now}
    return [f"the split {split!r} had {what}" for split, what in changed.items() if what]


def read(data: Mapping[str, Any]) -> Identities:
    """Those of `json`."""
    return {split: Identity.read(each) for split, each in data.items()}


def json(found: Identities) -> dict[str, Any]:
    """As they are stored."""
    return {split: each.json() for split, each in found.items()}


def describe_identity(found: Identities) -> str:
    """A line that shows them, and one for each note on them."""
    line = "data: " + "; ".join(f"{split} has {each}" for split, each in found.items())
    return "\n".join(
        [line, *(f"data: {note}" for note in dict.fromkeys(n for each in found.values() for n in each.notes))]
    )


def content(task: Task) -> bytes:
    """A task as bytes that equal tasks share, in any process."""
    value = [task.id, task.data]
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(value, default=_plain, option=options)
    except TypeError:  # numbers, keys or text that JSON can't express
        return orjson.dumps(_json(value), option=options)


def _choose(env: Env, split: str, source: Sequence[Any]) -> Iterator[Task]:
    """The tasks of a sequence that are digested."""
    count = len(source)
    places: Iterable[int] = range(count)
    if count > SAMPLED and not isinstance(source, list | tuple):
        places = (place * (count - 1) // (SAMPLED - 1) for place in range(SAMPLED))
    for place in places:
        yield calls.task(env, split, place, source[place])


def _digest(tasks: Iterable[Task], count: int | None, data: list[bytes] | None = None) -> Identity:
    ids, whole = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    first: list[str] = []
    examined, odd = 0, ""
    for task in tasks:
        if examined < FIRST:
            first.append(task.id)
        examined += 1
        ids.update(orjson.dumps(safe_json(task.id)))
        as_json = content(task)
        whole.update(as_json)
        if not odd and b"null" in as_json and (place := not_finite(task.data)):
            odd = f"task {task.id!r} has {place}, which is stored as null"
        own = {name: value for name, value in task.data.items() if name not in ("id", "split")}
        if data is not None and own:
            data.append(hashlib.blake2b(content(Task(id="", data=own)), digest_size=8).digest())
    notes = (odd,) if odd else ()
    return Identity(count, ids.hexdigest(), whole.hexdigest(), examined, tuple(first), notes)


def not_finite(value: Any, path: str = "") -> str:
    """Find NaN or infinity in a task's data; '' where there is neither."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        items = ((f"{path}[{key!r}]" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        items = ((f"{path}[{place}]", item) for place, item in enumerate(value))
    else:
        return f"{path} = {value}" if isinstance(value, float) and not math.isfinite(value) else ""
    return next((odd for place, item in items if (odd := not_finite(item, place))), "")


def _json(value: Any) -> Any:
    """The value as JSON; objects that are none by their kind."""
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, str | int | float) or value is None:
        return safe_json(value)
    return _json(_plain(value))


def _plain(value: Any) -> Any:
    """Return what stands for an object: never its address, which is another one in each process."""
    if isinstance(value, bytes | bytearray | memoryview):
        return hashlib.blake2b(value, digest_size=8).hexdigest()
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if hasattr(value, "tolist"):  # numbers and arrays of numpy
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    shown = str(value)
    return type(value).__qualname__ if f"{id(value):x}" in shown else shown
