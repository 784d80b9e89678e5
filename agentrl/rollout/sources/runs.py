"""The sessions that a run recorded, as the tasks and sessions of a stream of groups.

Their tokens and log-probabilities are the stored ones. Offline reinforcement learning takes them as they are; what
learns from demonstrations (`Needs.engine` is false) gets them as such, all that an engine sampled included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentrl.config.data import DataConfig
from agentrl.envs.data.splits import divide
from agentrl.errors import ConfigError
from agentrl.rollout.sources.judged import mark_ends
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.summary import Summary
from agentrl.types import MAIN, Node, Session, Status, Task, VersionSpan

STORE = "sessions.db"
PAGE = 10_000


@dataclass
class RecordedRun:
    """The training sessions of a run, by group, of which those are taken that fit the settings.

    Attributes:
        config: the settings.
        demonstrated: what was sampled becomes a demonstration.
        ends: of those, the last token of each path is trained alone: where its score is read.
        tasks: of each split; a task is a group.
        members: the ids of each group's sessions, by the task's id.
        left_out: how many sessions did not fit.
        flat: how many groups were left out since their sessions have the same reward, so that they make no pair.
    """

    config: DataConfig
    demonstrated: bool
    ends: bool = False
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    left_out: int = 0
    flat: int = 0

    def sessions(self, split: str, task: Task) -> list[Session]:
        """The sessions of a group, in the order of its samples."""
        with Store(Path(self.config.name) / STORE, read_only=True) as store:
            found = [store.load(name) for name in self.members[task.id]]
        for session in found:
            session.nodes = [self._node(node) for node in session.nodes]
            session.task = task
            if self.ends:
                mark_ends(session)
        return found

    def lines(self) -> Iterator[str]:
        """Describe what was read, in lines."""
        count = sum(map(len, self.members.values()))
        yield f"data: {count:,} sessions of {self.config.name}, in {len(self.members):,} groups"
        if self.left_out:
            yield f"data: {self.left_out:,} sessions are left out by data.status, data.min_reward and data.max_reward"
        if self.flat:
            yield f"data: {self.flat:,} groups are left out: their sessions have the same reward, which makes no pair"
        for split, tasks in self.tasks.items():
            yield f"data: {split}: {len(tasks):,} groups"

    def _node(self, node: Node) -> Node:
        """A node as it is trained on: versions of another run's weights count as 0."""
        if not node.sampled:
            return node
        start = node.versions[0].start
        wanted = node.agent == self.config.agent if self.config.agent else node.policy in (None, MAIN)
        if self.demonstrated:
            mask = [wanted and place >= start for place in range(len(node.token_ids))]
            return replace(
                node,
                trainable=mask,
                logprobs=[0.0] * len(mask),
                versions=[],
                sampling=None,
                finish_reason=None,
                stopped_by=None,
                copied_tokens=None,
            )
        mask = [trained and wanted for trained in node.trainable]
        return replace(node, trainable=mask, versions=[VersionSpan(0, start, len(mask))])


def is_run(name: str) -> bool:
    """Return whether a path is a run's folder."""
    return (Path(name).expanduser() / STORE).is_file()


def read_run(
    config: DataConfig, *, demonstrated: bool, ends: bool = False, pairs: bool = False, min_gap: float = 0.0
) -> RecordedRun:
    """The sessions of a run that fit the settings; ConfigError where none does, or a status or an agent is none.

    `pairs`: groups without two sessions whose rewards differ by more than `min_gap` are left out.
    """
    statuses = _statuses(config)
    found = RecordedRun(config, demonstrated, ends)
    groups: dict[str, list[tuple[int, Summary]]] = {}
    last: dict[tuple[str, int], tuple[int, Summary, bool]] = {}
    problems: dict[str, str] = {}
    with Store(Path(config.name) / STORE, read_only=True) as store:
        after: str | None = None
        while True:
            page = store.find({"phase": "train"}, limit=PAGE, after=after)
            for row in page.rows:
                fits = row.status in statuses and _within(row.score, config)
                known = last.get((row.group, row.sample))
                if known is None or known[0] <= row.attempt:
                    last[row.group, row.sample] = row.attempt, row, fits
                problems[row.group] = row.task
            if (after := page.next) is None:
                break
    for (group, sample), (_, row, fits) in sorted(last.items(), key=lambda each: each[0]):
        if fits:
            groups.setdefault(group, []).append((sample, row))
        else:
            found.left_out += 1
    _check_agent(config, [row for _, row, _ in last.values()])
    if not groups:
        raise ConfigError(
            f"data={config.name}: none of {found.left_out:,} sessions is taken: see data.status, data.min_reward and "
            "data.max_reward"
        )
    if pairs:
        differing = {name: members for name, members in groups.items() if _differ([row for _, row in members], min_gap)}
        found.flat, groups = len(groups) - len(differing), differing
        by = f" by more than algo.min_gap={min_gap:g}" if min_gap else ""
        if not groups:
            raise ConfigError(
                f"data={config.name}: in none of {found.flat:,} groups do sessions differ in their rewards{by}, so "
                "there are no pairs (algo=kto learns from single sessions)"
            )
    found.members = {group: [row.id for _, row in members] for group, members in groups.items()}
    tasks = [Task(id=group, data={"task": problems[group], "sessions": len(found.members[group])}) for group in groups]
    for split in ("train", "eval"):
        found.tasks[split] = list(divide(tasks, split, lambda task: str(task["task"]), f"data={config.name}"))
    return found


def _check_agent(config: DataConfig, rows: Sequence[Summary]) -> None:
    """Refuse an agent that has no turns in any session."""
    known = sorted({name for row in rows for name in row.agents})
    if config.agent is not None and config.agent not in known:
        raise ConfigError(f"data.agent={config.agent}: no session has such an agent (agents: {', '.join(known)})")


def _differ(rows: Sequence[Summary], min_gap: float) -> bool:
    """Return whether sessions of a group may make a pair; of forks and several agents that is not known."""
    if any(row.branches > 1 or len(row.agents) > 1 for row in rows):
        return True
    scores = [row.score for row in rows if row.score is not None]
    return len(scores) > 1 and max(scores) - min(scores) > min_gap


def _within(score: float | None, config: DataConfig) -> bool:
    if score is None:
        return config.min_reward is None and config.max_reward is None
    low, high = config.min_reward, config.max_reward
    return (low is None or score >= low) and (high is None or score <= high)


def _statuses(config: DataConfig) -> set[Status]:
    known = {status.value: status for status in Status}
    for name in config.status:
        if name not in known:
            raise ConfigError(f"data.status={name}: there are {', '.join(known)}")
    return {known[name] for name in config.status}
