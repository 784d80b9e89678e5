"""The steps after a run's newest checkpoint, which a resumed run trains again as they are recorded.

After each step `stream.json` in the run folder gets the state of the stream of groups. The ledger says which groups
each step trained, and the session store has their sessions. So a resumed run needs no generation to come from its
checkpoint's weights to those of its last step: it trains the same batches again, and continues there. That takes a
trainer that computes the same again (`Trainer.deterministic`), and is compared with the recorded metrics. Otherwise the
weights of these steps are lost: the run continues from its checkpoint, and what they generated is discarded
(`Stream.carry_over`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.stream.outcomes import GroupOutcome
from agentrl.rollout.workers.held import has_content
from agentrl.sessions.store.query import Between
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.incarnations import Loss
from agentrl.train.driver.resuming import ResumedFrom, step_of
from agentrl.train.record import ledger
from agentrl.train.record.files import are_same, write_atomically
from agentrl.train.record.recording import BY_TIME
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.seals import LOSSES, STREAM, digest, read_losses
from agentrl.train.record.state import read_saved
from agentrl.types import MAIN, Group

if TYPE_CHECKING:
    from agentrl.train.driver.loop import Loop


@dataclass(frozen=True)
class RecordedSteps:
    """Steps that are recorded to the end.

    Attributes:
        last: the last of them, from 1.
        state: of the stream and the algorithm after it.
        outcomes: what each step trained, by step from 1.
        rows: their metrics.
    """

    last: int
    state: Mapping[str, Any]
    outcomes: Mapping[int, list[GroupOutcome]]
    rows: Mapping[int, Mapping[str, float]]

    def groups(self, step: int, store: Store) -> list[Group] | None:
        """Return the groups that a step (from 1) trained on; None where ledger or store don't have them."""
        found: list[Group] = []
        for outcome in self.outcomes.get(step, ()):
            group = ledger.group_of(outcome, store)
            if not group.sessions or not has_content(group.sessions, outcome.hash):
                return None
            found.append(group)
        return found or None


def read(folder: RunFolder, start: int) -> RecordedSteps | None:
    """The steps after `start`; None where there are none that are recorded to the end."""
    try:
        state = orjson.loads((folder.path / STREAM).read_bytes())
        last = int(state["step"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # it is damaged: as good as missing
        return None
    rows = {int(row["step"]): row for row in folder.metrics()}
    if last <= start or not rows.keys() >= set(range(start + 1, last + 1)):
        return None
    return RecordedSteps(last, state, ledger.read_trained(ledger.read(folder.path)), rows)


async def resume(loop: Loop, resumed: ResumedFrom) -> int:
    """Bring a resumed run, whose trainer has its checkpoint's weights, to the step that it continues after.

    Returns:
        The last step that is recorded, where its weights could be computed again; else the checkpoint's.
    """
    config, folder, state = loop.config, loop.folder, loop.state
    start = last = step_of(resumed.checkpoint)
    recorded = read(folder, start)
    done = max((int(row["step"]) for row in folder.metrics()), default=0)
    if recorded is None and done > start:
        loop.display.warn(f"steps {start + 1} to {done} are lost, and learned again: {STREAM} or metrics lack them")
    if recorded is not None:
        again = all(policy.trainer.deterministic for policy in state.learned.values())
        why = _describe_changes(loop, resumed) if again else f"trainer={config.trainer.name} is not deterministic here"
        if not why and not (why := await loop.recovering(start, partial(_train_again, loop, recorded, start))):
            last = recorded.last
            loop.display.say(f"steps {start + 1} to {last} were trained again as they are recorded")
        else:
            loop.display.warn(f"steps {start + 1} to {recorded.last} are lost, and learned again: {why}")
            await loop.recovering(start, partial(loop.restore_trainers, resumed.checkpoint))
    folder.drop_after(last)  # before anything else is sealed: seals are in the order of steps
    if recorded is not None and last > start:
        state.restore_stream(recorded.state["stream"])
        state.restore_algorithms(recorded.state)
    else:
        state.restore_stream(read_saved(resumed.checkpoint)["stream"])
    survived = {name: policy.trainer.version for name, policy in state.learned.items()}
    reproducible = _reproducible(loop, resumed)

    def seal(content: bytes) -> None:
        folder.seals.add(last, files={LOSSES: digest(content)})

    state.store.losses = losses(folder.path, state.store, survived, seal, reproducible=reproducible)
    if resumed.saved.rewards == config.rewards:
        state.stream.carry_over(state.store, survived)
    if last > start:
        await loop.recovering(last, partial(loop.save, last))
    return last


def losses(
    run: Path,
    store: Store,
    survived: Mapping[str, int],
    seal: Callable[[bytes], object] = lambda content: None,
    *,
    reproducible: bool,
) -> list[Loss]:
    """The last version that survived each loss of weights of a run, one that is found now included.

    Weights are lost where the store has turns of a later version than the policy's in `survived`, with which the run
    continues, unless later versions are `reproducible`, bit for bit. Of several policies that learn the store can't
    tell, and one that lost nothing is none the worse: the weights that follow have another name. `seal` is given the
    content of `losses.json` before it is written.
    """
    found = read_losses(run)
    alone = len(survived) == 1
    lost = not alone or store.find({"version_max": Between(survived[MAIN] + 1)}, limit=1).rows
    if not reproducible and lost:
        found.append(survived[MAIN] if alone else dict(survived))
        seal(orjson.dumps(found))
        write_atomically(run / LOSSES, orjson.dumps(found))
    return found


def _reproducible(loop: Loop, resumed: ResumedFrom) -> bool:
    """True where steps that are taken again have the same groups, tokens and weights, whichever policy plays."""
    same, source = not _describe_changes(loop, resumed), loop.stream.rollouts
    same = same and loop.config.rollout == resumed.saved.rollout
    engines = source.engines if isinstance(source, Rollouts) else []
    exact = all(policy.trainer.deterministic for policy in loop.state.learned.values()) and all(
        engine.capabilities.deterministic for engine in engines
    )
    return same and exact and not loop.config.rollout.staleness


def _describe_changes(loop: Loop, resumed: ResumedFrom) -> str:
    """The settings because of which the steps would come out otherwise; empty where there are none."""
    names, now, before = ("algo", "trainer", "steps", "policies"), loop.config, resumed.saved
    changed = [name for name in names if getattr(now, name) != getattr(before, name)]
    return f"{' and '.join(changed)} changed" if changed else ""


async def _train_again(loop: Loop, recorded: RecordedSteps, start: int) -> str:
    """Train the steps after `start` again; returns why they are not those that are recorded."""
    for step in range(start + 1, recorded.last + 1):
        groups = recorded.groups(step, loop.state.store)
        if groups is None:
            return f"the store or the ledger lacks sessions of step {step}"
        metrics = await loop.train(groups, step - 1, again=True)
        loop.recovery.learned(step - 1, groups)
        found = orjson.loads(orjson.dumps({**metrics, "version": float(loop.trainer.version)}))
        for name, value in found.items():
            policy, _, own = name.partition("/")
            by_time = (own if policy in loop.others else name).startswith(BY_TIME)
            value = math.nan if value is None else value
            if not by_time and not are_same(value, recorded.rows[step].get(name)):
                return f"{name} of step {step} is {value}, and was {recorded.rows[step].get(name)}"
    return ""
