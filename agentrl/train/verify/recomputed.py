"""Scores, credit and forests of a step, computed again from the session store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl.config import AlgoConfig
from agentrl.errors import AgentRLError, brief
from agentrl.rollout.seeds import derive
from agentrl.train.algorithms import Needs, make_algorithm
from agentrl.train.packing import pack_credited
from agentrl.train.provenance import Share, Trained, counted, forest_hash, shares_of
from agentrl.train.shaping import shaped_groups
from agentrl.train.verify.recorded import Step
from agentrl.train.verify.report import Check, Fault


@dataclass(frozen=True, slots=True)
class Recomputed:
    """See `Trained`, whose fields these are."""

    scores: Mapping[str, float | None]
    credit: Mapping[str, Mapping[str, Sequence[Share]]]
    forests: str


def recompute(step: Step, trained: Trained) -> Recomputed | str:
    """What a step trained on, from what is stored; where it can't be computed, why."""
    config = step.config
    try:
        algorithm = make_algorithm(config.algo)
        algorithm.load_snapshot(trained.algorithm)
        if why := _lacking(algorithm.needs, algorithm.config):
            return why
        views = [view for group in step.groups for view in group.by_agent()]
        groups = shaped_groups(views, algorithm.config, algorithm.adaptive)
        seed = derive(config.seed, "pack", step.number - 1)
        credit, forests = pack_credited(algorithm, groups, None, config.trainer.token_budget, seed)
    except AgentRLError as error:
        return f"steps whose credit fails: {brief(str(error))}"
    return Recomputed(
        {session.id: session.score for session in counted(groups)}, shares_of(credit), forest_hash(forests)
    )


def _lacking(needs: Needs, config: AlgoConfig) -> str:
    """What credit depends on that is not stored, in words; '' where there is nothing."""
    if needs.critic or needs.reward_model:
        return "steps whose credit depends on a model's values, which are not stored"
    if config.kl_coef and config.kl_as == "reward":
        return "steps whose rewards have a KL penalty, which is not stored"
    return ""


def compare(step: Step, rewards: Check, credit: Check, tokens: Check) -> None:
    """Check what a step used against what the store gives for it."""
    if step.trained is None or step.damaged:
        return
    found = recompute(step, step.trained)
    if isinstance(found, str):
        for check in (rewards, credit, tokens):
            check.unknown[found] += 1
        return
    rewards.examined["sessions"] += len(found.scores)
    for session, score in found.scores.items():
        used = step.trained.scores.get(session)
        if used != score:
            rewards.faults.append(
                Fault(f"{step.where}, session {session}", f"trained with score {used}, stored {score}")
            )
    rewards.faults += [
        Fault(
            f"{step.where}, session {session}", "counted in a baseline, though it is none of the step's scored sessions"
        )
        for session in step.trained.scores.keys() - found.scores.keys()
    ]
    credit.examined["turns"] += sum(map(len, found.credit.values()))
    credit.faults += _differences(step.where, step.trained.credit, found.credit)
    tokens.examined["steps"] += 1
    if step.trained.forests != found.forests:
        tokens.faults.append(
            Fault(
                step.where, f"trained tokens with the hash {step.trained.forests}, the stored ones have {found.forests}"
            )
        )


def _differences(
    where: str, used: Mapping[str, Mapping[str, Sequence[Share]]], found: Mapping[str, Mapping[str, Sequence[Share]]]
) -> Iterator[Fault]:
    for session in sorted(used.keys() | found.keys()):
        ours, theirs = used.get(session, {}), found.get(session, {})
        for node in sorted(ours.keys() | theirs.keys(), key=int):
            one, other = ours.get(node), theirs.get(node)
            if one != other:
                yield Fault(
                    f"{where}, session {session}, turn {node}", f"trained with {_words(one)}, not {_words(other)}"
                )


def _words(shares: Sequence[Share] | None) -> str:
    if not shares:
        return "no credit"
    return " and ".join(f"advantage {share[0]}, weight {share[1]}" for share in shares)
