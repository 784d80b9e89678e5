"""`agentrl reject`: the best of n sessions of each task, as a file of conversations that `algo=sft data=FILE` reads.

Sessions are those of an evaluation on training tasks, in a folder whose name has the digest of what decides them. So
the same command goes on where it was stopped, tries again what the infrastructure failed, and another threshold plays
nothing again. The file is written when all sessions have ended, always the same for the same sessions.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import PositiveInt

from agentrl.config import EvalConfig, RunConfig, Section
from agentrl.config.sections import PathText
from agentrl.envs import sandboxes
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, NoSignal
from agentrl.overrides import Tree, merge, validate
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.driver.resuming import saved_settings
from agentrl.train.evaluation import evaluate
from agentrl.train.evaluation.suite import content
from agentrl.train.record.files import write_atomically
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.seals import SETTINGS
from agentrl.types import MAIN, Node, Session, Status

OTHER_FORMATS = (".csv", ".tsv", ".parquet", ".gz", ".json")


class RejectConfig(Section):
    """The settings of `agentrl reject`, beside those of `agentrl eval`."""

    out: PathText
    """The file of conversations, JSONL; it is written anew when all sessions have ended."""
    n: PositiveInt = 8
    """Sessions of each task; `eval.tasks` says how many tasks."""
    max_per_task: PositiveInt = 1
    """The number of sessions of a task that are kept, those with the highest rewards."""
    min_reward: float | None = None
    """The lowest reward of a session that is kept; None: `eval.solved_at`."""


@dataclass
class Rejection:
    """The result.

    Attributes:
        out: the file.
        folder: the evaluation whose sessions it is of.
        counts: sessions by what became of them; `rows`, the file's lines; `tasks`, those with a row.
        best: the highest reward.
        mean: the mean reward of the sessions.
    """

    out: Path
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    best: float | None = None
    mean: float | None = None

    def lines(self) -> Iterator[str]:
        """Describe what was kept, and why the others were not."""
        kept, total = self.counts["kept"], self.counts["sessions"]
        lost = [f"{number:,} {cause}" for cause, number in self.counts.items() if cause in CAUSES and number]
        yield (
            f"{kept:,} of {total:,} sessions are kept, of {self.counts['solved']:,} of {self.counts['tasks']:,} tasks"
            + (f" (not: {', '.join(lost)})" if lost else "")
        )
        yield f"{self.counts['rows']:,} conversations: {self.out}"
        yield f"  agentrl train algo=sft data={self.out} model=…"


FAILED, UNENDED, LOW, SAME, SURPLUS = (
    "failed by infrastructure",
    "not ended by themselves",
    "below min_reward",
    "the same as another",
    "over max_per_task",
)
CAUSES = (FAILED, UNENDED, LOW, SAME, SURPLUS)


def split_settings(tree: Tree) -> tuple[Tree, RejectConfig]:
    """The settings of the evaluation, and those of what is kept."""
    own = validate({name: tree[name] for name in RejectConfig.model_fields if name in tree}, RejectConfig)
    rest = {name: value for name, value in tree.items() if name not in RejectConfig.model_fields}
    given = rest.get("eval")
    if isinstance(given, Mapping) and "n" in given:
        raise ConfigError("eval.n is n= here")
    if own.out.endswith(OTHER_FORMATS):
        raise ConfigError(f"out={own.out}: conversations are written as JSON lines: out=NAME.jsonl")
    return merge({"eval": {"split": "train"}}, merge(rest, {"eval": {"n": own.n}})), own


async def reject(
    config: RunConfig, own: RejectConfig, display: Display, folder: Path | None = None, hint: str = ""
) -> Rejection:
    """Play what is not played yet, and write the best sessions.

    Args:
        config: the evaluation's, from `split_settings`.
        own: what is kept.
        display: displays progress.
        folder: where the sessions are; None: a folder of `run_dir` that is named by what decides them.
        hint: what an interrupted one prints besides.

    Raises:
        ConfigError: a setting does not fit, or the file or the sessions are of other settings.
        InfraError: every session ended in an infrastructure error.
        NoSignal: no session is kept; no file is written.
    """
    sandboxes.configure(config.sandbox)
    config = evaluate.resolve_config(config)
    out = Path(own.out)
    if folder is None:
        folder = Path(config.run_dir or "runs") / f"reject-{_name(config)}"
    elif (folder / SETTINGS).exists() and _name(evaluate.resolve_config(saved_settings(folder))) != _name(config):
        raise ConfigError(f"{folder} has sessions of other settings; a new run_dir has others")
    again = _goes_on(folder, out)
    with (
        closing(RunFolder.create(folder, config, again=again)) as opened,
        Store(folder / "sessions.db") as store,
        display,
    ):
        async with evaluate.loaded_policy([config], folder, display) as rollouts_of:
            hint = f"; {hint or 'the same command goes on from there'}"
            result, _ = await evaluate.measure(rollouts_of, opened, store, display, name="sampling", hint=hint)
        found = Rejection(out, folder, mean=result.mean)
        rows = await asyncio.to_thread(choose_rows, config.eval, own, store, found)
    if not rows:
        low = config.eval.solved_at if own.min_reward is None else own.min_reward
        lost = ", ".join(f"{found.counts[cause]:,} {cause}" for cause in CAUSES if found.counts[cause])
        raise NoSignal(
            f"no session of {found.counts['sessions']:,} is kept ({lost}); the best reward is {found.best}, and "
            f"min_reward is {low:g}: lower it, or raise n"
        )
    write_atomically(out, b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return found


def _goes_on(folder: Path, out: Path) -> bool:
    """Return whether sessions are there already."""
    again = (folder / SETTINGS).exists()
    if out.exists() and not again:
        raise ConfigError(f"out={out}: there is a file already, of other sessions than those in {folder}")
    try:  # before anything is sampled
        out.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(out.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(f"out={out}: can't write there: {error.strerror}") from None
    return again


def _name(config: RunConfig) -> str:
    """A name of what decides the sessions: the environment's, and a digest."""
    policy = content.policy_content(config)
    part = content.part_content(config, make(config.env.name, **config.env.kwargs))
    return f"{Path(config.env.name.partition(':')[0]).stem}-{content.digest([policy, part])}"


def choose_rows(measured: EvalConfig, own: RejectConfig, store: Store, found: Rejection) -> list[dict[str, Any]]:
    """The file's rows, task by task, the best sessions first."""
    groups: dict[str, dict[int, str]] = {}
    of_evaluation = store.summaries({"phase": "eval"})
    places = sorted((row.group_number or 0, row.sample, row.attempt, row.group, row.id) for row in of_evaluation)
    for number, sample, _, group, id_ in places:
        if number < measured.tasks and sample < own.n:
            groups.setdefault(group, {})[sample] = id_
    low = measured.solved_at if own.min_reward is None else own.min_reward
    known, rows = set[bytes](), list[dict[str, Any]]()
    for members in groups.values():
        kept = 0
        for session in _best_first([store.load(id_) for id_ in members.values()], low, found):
            own_rows = list(_conversations(session))
            text = orjson.dumps([row["messages"] for row in own_rows])
            if text in known or not own_rows:
                found.counts[SAME] += 1
            elif kept == own.max_per_task:
                found.counts[SURPLUS] += 1
            else:
                known.add(text)
                rows += own_rows
                kept += 1
        found.counts.update({"tasks": 1, "solved": int(kept > 0), "kept": kept})
    found.counts["rows"] = len(rows)
    return rows


def _best_first(members: Sequence[Session], low: float, found: Rejection) -> list[Session]:
    """The sessions of a task that may be kept, each agent's by itself; the others are counted."""
    fitting: list[tuple[float, Session]] = []
    for session in members:
        found.counts["sessions"] += 1
        views = [view for view in session.by_agent() if view.score is not None]
        scores = [view.score or 0.0 for view in views]
        if session.status is Status.INFRA_ERROR:
            found.counts[FAILED] += 1
            continue
        found.best = max([*scores, *([] if found.best is None else [found.best])], default=None)
        if session.status is not Status.COMPLETED:
            found.counts[UNENDED] += 1
        elif not any(score >= low for score in scores):
            found.counts[LOW] += 1
        else:
            fitting += [(score, view) for score, view in zip(scores, views, strict=True) if score >= low]
    return [session for _, session in sorted(fitting, key=lambda each: -each[0])]


def _conversations(session: Session) -> Iterator[dict[str, Any]]:
    """A row for each path of a session; a turn that the policy did not write has weight 0."""
    sampled = any(node.sampled for node in session.nodes)
    about = {"task": session.task.id, "reward": session.score, "session": session.id}
    for path in session.paths():
        messages = [_message(node, sampled) for node in path]
        if any(each["role"] == "assistant" and "weight" not in each for each in messages):
            tools = next((node.tools for node in path if node.tools), [])
            yield {"messages": messages, **({"tools": tools} if tools else {}), **about}


def _message(node: Node, sampled: bool) -> dict[str, Any]:
    message = node.message.model_dump(exclude_none=True)
    own = node.policy in (None, MAIN) and (node.sampled or not sampled)
    return message if own or message["role"] != "assistant" else {**message, "weight": 0}
