"""The outcome of each group of a run: trained, or discarded for a cause; with a hash of what the training saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from agentrl.rollout.workers.held import content_hash, is_head, versions_of
from agentrl.types import MAIN, Group

TRAINED = "trained"
REPLAYED = "replayed"
"""A group that was trained on before was trained on a second time (`rollout.reuse`)."""
STALE = "stale"
"""The reason of a group that would be further behind than the bound allows."""
FAILED = "failed"
"""The reason of a group all of whose batch's sessions failed by infrastructure."""
GENERATED_AGAIN = frozenset({STALE, FAILED})
"""Causes after which the group's number is generated again, as another attempt; other causes end the number."""


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """A group's way out of the stream.

    Attributes:
        group: its id.
        number: its number, which follows from the stream alone.
        attempt: how often that number was generated before.
        task: the task's id; `choice`, what the task sampler chose (`Group.choice`).
        begun: the step that it was begun in, from 0.
        versions: the versions of the trained policy that generated its tokens, in order; empty where it was discarded
            before it was finished.
        outcome: `TRAINED`, `REPLAYED`, or the cause for which it was discarded.
        hash: of its sessions (`content_hash`); None where it was discarded before it was finished.
        others: `versions` of each other policy that learns, by its name; what is written has no such key without any.
    """

    group: str
    number: int
    attempt: int
    task: str
    choice: Any
    begun: int
    versions: tuple[int, ...]
    outcome: str
    hash: str | None
    others: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @staticmethod
    def of(group: Group, outcome: str) -> GroupOutcome:
        """The outcome of a group."""
        versions = tuple(sorted({version for session in group.sessions for version in versions_of(session)}))
        found = content_hash(group.sessions) if group.sessions else None
        return GroupOutcome(
            group=group.id,
            number=group.number,
            attempt=group.attempt,
            task=group.task.id,
            choice=group.choice,
            begun=group.step,
            versions=versions,
            outcome=outcome,
            hash=found,
            others=_others(group),
        )

    def data(self) -> dict[str, Any]:
        """The outcome as it is written."""
        found = asdict(self)
        if not self.others:
            del found["others"]
        return found

    @staticmethod
    def read(data: dict[str, Any]) -> GroupOutcome:
        """The outcome of a JSON object with these fields."""
        names = GroupOutcome.__dataclass_fields__.keys() - {"others"}
        others = {name: tuple(versions) for name, versions in data.get("others", {}).items()}
        given = {name: data[name] for name in names} | {"versions": tuple(data["versions"]), "others": others}
        return GroupOutcome(**given)


def _others(group: Group) -> dict[str, tuple[int, ...]]:
    """The versions of policies besides the main one whose tokens in a group are trained."""
    found: dict[str, set[int]] = {}
    here = [session for session in group.sessions if not is_head(session)]  # those of several learners all are
    for node in (node for session in here for node in session.nodes):
        if node.policy not in (None, MAIN) and any(node.trainable):
            found.setdefault(str(node.policy), set()).update(span.version for span in node.versions)
    return {name: tuple(sorted(versions)) for name, versions in sorted(found.items())}
