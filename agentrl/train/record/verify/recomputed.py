"""Scores, credit and forests of a step, computed again from the session store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl.config import AlgoConfig
from agentrl.errors import AgentRLError, brief
from agentrl.rollout.stream.seeds import derive
from agentrl.train.algorithms import Algorithm, Needs, make_algorithm
from agentrl.train.algorithms.credit import Credit
from agentrl.train.algorithms.shaping import shaped_groups, views_of
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack_credited
from agentrl.train.record.provenance import Share, Trained, forest_hash, list_counted, shares_of
from agentrl.train.record.verify.recorded import Step
from agentrl.train.record.verify.report import Check, Discrepancy
from agentrl.types import Group


@dataclass(frozen=True, slots=True)
class Repacked:
    """A step's batch again: its groups with rewards as credit saw them, credit, forests, and the algorithm after it."""

    groups: list[Group]
    credit: Credit
    forests: list[Forest]
    algorithm: Algorithm


def repack(step: Step, trained: Trained) -> Repacked | str:
    """Compute the trainer's batch of a step from what is stored; where that can't be done, say why."""
    config = step.config
    try:
        algorithm = make_algorithm(config.algo)
        algorithm.load_snapshot(trained.algorithm)
        if why := _lacking(algorithm.needs, algorithm.config):
            return why
        views = views_of(step.groups, algorithm.config)
        groups = shaped_groups(views, algorithm.config, algorithm.adaptive)
        seed = derive(config.seed, "pack", step.number - 1)
        credit, forests = pack_credited(algorithm, groups, None, config.trainer.token_budget, seed)
    except AgentRLError as error:
        return f"steps whose credit fails: {brief(str(error))}"
    return Repacked(groups, credit, forests, algorithm)


def _lacking(needs: Needs, config: AlgoConfig) -> str:
    """Name what credit depends on that is not stored; '' where there is nothing."""
    if needs.values:
        return "steps whose credit depends on a model's values, which are not stored"
    if config.kl_coef and config.kl_as == "reward":
        return "steps whose rewards have a KL penalty, which is not stored"
    return ""


def compare(step: Step, rewards: Check, credit: Check, tokens: Check) -> None:
    """Check what a step used against what the store gives for it."""
    if step.trained is None or step.damaged:
        return
    found = repack(step, step.trained)
    if isinstance(found, str):
        for check in (rewards, credit, tokens):
            check.unknown[found] += 1
        return
    scores = {session.id: session.score for session in list_counted(found.groups)}
    shares, hashed = shares_of(found.credit), forest_hash(found.forests)
    rewards.examined["sessions"] += len(scores)
    for session, score in scores.items():
        used = step.trained.scores.get(session)
        if used != score:
            rewards.fault(f"{step.where}, session {session}", f"trained with score {used}, stored {score}")
    rewards.faults += [
        Discrepancy(
            f"{step.where}, session {session}", "counted in a baseline, though it is none of the step's scored sessions"
        )
        for session in step.trained.scores.keys() - scores.keys()
    ]
    credit.examined["turns"] += sum(map(len, shares.values()))
    credit.faults += _differences(step.where, step.trained.credit, shares)
    tokens.examined["steps"] += 1
    if step.trained.forests != hashed:
        tokens.fault(step.where, f"trained tokens with the hash {step.trained.forests}, the stored ones have {hashed}")


def _differences(
    where: str, used: Mapping[str, Mapping[str, Sequence[Share]]], found: Mapping[str, Mapping[str, Sequence[Share]]]
) -> Iterator[Discrepancy]:
    for session in sorted(used.keys() | found.keys()):
        ours, theirs = used.get(session, {}), found.get(session, {})
        for node in sorted(ours.keys() | theirs.keys(), key=int):
            one, other = ours.get(node), theirs.get(node)
            if one != other:
                yield Discrepancy(
                    f"{where}, session {session}, turn {node}", f"trained with {_words(one)}, not {_words(other)}"
                )


def _words(shares: Sequence[Share] | None) -> str:
    if not shares:
        return "no credit"
    return " and ".join(f"advantage {share[0]}, weight {share[1]}" for share in shares)
