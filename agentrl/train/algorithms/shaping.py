"""Rewards as credit sees them: scaled, less punishments of length and format, less a KL penalty.

Groups and sessions are copied where a reward changes; those that are stored, logged, filtered and evaluated keep
theirs.
What is added to a session is also a reward by the name `SHAPED`, for algorithms that read rewards by name.
A punishment of a turn, for its format or its KL, is a step reward of that turn, so every algorithm's credit handles it
on trees as it does any step reward. Order: rewards are scaled, then the rest is added.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl.config import AlgoConfig, ShapingConfig
from agentrl.train.algorithms.adaptive import Adaptive
from agentrl.train.algorithms.credit import NodeKey, Values, ids_by_group, trainable_nodes
from agentrl.train.algorithms.gae import all_steps
from agentrl.train.algorithms.values import per_token
from agentrl.train.trainers.base import Computing
from agentrl.types import Group, Node, Session, Status
from agentrl.types.branches import alone, branch_nodes, mean_rewards
from agentrl.types.session import is_scored

SCALE_FLOOR = 1e-8
"""Scores whose standard deviation is below this are not scaled."""


SHAPED = "algo.shaping"
"""The name of what was added to a session's score; no reward of an environment has a dot in its name."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """The KL to the reference by turn, in nats.

    Attributes:
        kl: the sum of the estimates over a turn's trained tokens, by session and node.
        mean: k3 per trained token, over all turns.
    """

    kl: Mapping[NodeKey, float]
    mean: float

    def metrics(self) -> dict[str, float]:
        """Return the metrics that a run logs."""
        return {"policy/kl_reference": self.mean} if self.kl else {}


def reference_kl(
    trainer: Computing, groups: Sequence[Group], config: AlgoConfig, token_budget: int, seed: int = 0
) -> Estimates:
    """The KL from the policy that sampled to the reference at each turn, by a pass of the reference."""
    from agentrl.train.algorithms.kl import summed_estimate

    reference: Values = per_token(groups, lambda f: trainer.logprobs(f, reference=True), token_budget, seed)
    sessions = {session.id: session for group in groups for session in group.scored}
    places = {name: all_steps(session) for name, session in sessions.items()}
    kl: dict[NodeKey, float] = {}
    total, count = 0.0, 0
    for (session, number), ref_logps in reference.items():
        node = sessions[session].nodes[number]
        trained = places[session][number]
        kl[session, number] = summed_estimate(node.logprobs, ref_logps, trained, config.kl_estimator)
        total += summed_estimate(node.logprobs, ref_logps, trained, "k3")
        count += len(trained)
    return Estimates(kl, total / max(count, 1))


def shaped_groups(
    groups: Sequence[Group], config: AlgoConfig, adaptive: Adaptive, estimates: Estimates | None = None
) -> list[Group]:
    """The groups with rewards as credit is to see them; the same objects where nothing is to change."""
    shaping = config.shaping
    if not shaping.active and estimates is None:
        return list(groups)
    scale = _scale(groups, adaptive) if shaping.scale_rewards else 1.0
    brevity = length_rewards(groups) if shaping.length_reward else {}
    kl = {} if estimates is None else {key: adaptive.kl_coef * each for key, each in estimates.kl.items()}

    def shaped(session: Session) -> Session:
        own = trainable_nodes(session)
        brief = shaping.length_reward * brevity.get(session.id, 0.0)
        final = brief - final_penalty(session, shaping)
        turns = {n.id: kl.get((session.id, n.id), 0.0) + format_penalty(session, n.id, shaping) for n in own}
        nodes = [
            replace(n, reward=scale * (n.reward or 0.0) - turns.get(n.id, 0.0))
            if n.reward is not None or turns.get(n.id)
            else n
            for n in session.nodes
        ]
        reward = None if session.reward is None and not final else scale * (session.reward or 0.0) + final
        if not session.branches:
            return named(session, replace(session, nodes=nodes, reward=reward))
        branches = []
        for branch in session.branches:
            path = replace(alone(session, branch_nodes(session, branch)), status=branch.status)
            final = brief - final_penalty(path, shaping)
            kept = not is_scored(session, branch) or (branch.reward is None and not final)
            branches.append(branch if kept else replace(branch, reward=scale * (branch.reward or 0.0) + final))
        forked = replace(session, nodes=nodes, branches=branches)
        forked.reward = mean_rewards(forked)[1]
        return named(session, forked)

    def named(before: Session, after: Session) -> Session:
        added = (after.score or 0.0) - scale * ((before.score or 0.0) - before.rewards.get(SHAPED, 0.0))
        return replace(after, rewards=after.rewards | {SHAPED: added})

    found = []
    for group in groups:
        rewarded = {id(session) for session in (*group.scored, *group.greedy)}
        sessions = [shaped(session) if id(session) in rewarded else session for session in group.sessions]
        found.append(replace(group, sessions=sessions))
    return found


def views_of(groups: Sequence[Group], config: AlgoConfig) -> list[Group]:
    """The groups of each agent (`Group.by_agent`), with turns compared with earlier ones where that is configured."""
    views = [view for group in groups for view in group.by_agent()]
    if config.shaping.turns == "as_they_are":
        return views
    found = []
    after = (view for group in groups for view in _turns_compared(group, config.shaping).by_agent())
    for view, shaped in zip(views, after, strict=True):
        changes = [
            (new.score or 0.0) - (old.score or 0.0) for old, new in zip(view.sessions, shaped.sessions, strict=True)
        ]
        sessions = [replace(s, rewards=s.rewards | {SHAPED: x}) for s, x in zip(shaped.sessions, changes, strict=True)]
        found.append(replace(shaped, sessions=sessions))
    return found


def _turns_compared(group: Group, shaping: ShapingConfig) -> Group:
    sessions = []
    for session in group.sessions:
        turns: dict[str, list[Node]] = {}
        for node in session.nodes:
            if node.message.role == "assistant" and node.copy_of is None:
                turns.setdefault(node.agent, []).append(node)
        outcomes = [[node.reward for node in own] for own in turns.values()]
        compared = compare_with_earlier(outcomes, shaping)
        rewards = {
            node.id: reward
            for own, row in zip(turns.values(), compared, strict=True)
            for node, reward in zip(own, row, strict=True)
        }
        nodes = [replace(node, reward=rewards.get(node.id, node.reward)) for node in session.nodes]
        sessions.append(replace(session, nodes=nodes))
    return replace(group, sessions=sessions)


def compare_with_earlier(
    outcomes: Sequence[Sequence[float | None]], shaping: ShapingConfig
) -> list[list[float | None]]:
    """Return the outcomes of turns compared with those of all agents' earlier turns; see `ShapingConfig.turns`.

    Args:
        outcomes: a row for each agent, a column for each of its turns in order; None where a turn was not rewarded,
            which is neither changed nor compared with. Turns of one column are at once: none is earlier.
        shaping: how, and the weights.
    """
    columns = max(map(len, outcomes), default=0)
    earlier: list[float] = []
    means: list[float | None] = []
    for column in range(columns):
        means.append(statistics.fmean(earlier) if earlier else None)
        earlier += [r for row in outcomes if column < len(row) and (r := row[column]) is not None]

    def compared(reward: float | None, mean: float | None) -> float | None:
        if reward is None:
            return None
        change = 0.0 if mean is None else reward - mean if shaping.turns == "margin" else reward * mean
        return shaping.turn_outcome * reward + shaping.turn_alpha * change

    return [[compared(reward, mean) for reward, mean in zip(row, means, strict=False)] for row in outcomes]


def final_penalty(session: Session, shaping: ShapingConfig) -> float:
    """Return the penalty on a session's final reward for its length and its end."""
    penalty = shaping.truncated_penalty if session.status is Status.TRUNCATED else 0.0
    if shaping.overlong_tokens is not None:
        excess = sampled_length(session) - (shaping.overlong_tokens - shaping.overlong_buffer)
        share = min(max(excess / shaping.overlong_buffer, 0.0), 1.0) if shaping.overlong_buffer else float(excess > 0)
        penalty += shaping.overlong_penalty * share
    return penalty


def format_penalty(session: Session, node: int, shaping: ShapingConfig) -> float:
    """Return the penalty on a turn's step reward for a tool call that can't be read."""
    calls = session.nodes[node].message.tool_calls or ()
    return shaping.format_penalty if any(call.error is not None for call in calls) else 0.0


def length_rewards(groups: Sequence[Group]) -> dict[str, float]:
    """Return 0.5 - (length - group's shortest) / (longest - shortest) by session, at most 0 unless its score is > 0.

    Kimi k1.5 (arXiv:2501.12599, section 2.3.3); 0 where all are of one length.
    """
    found: dict[str, float] = {}
    for sessions in ids_by_group(groups).values():
        lengths = {session.id: sampled_length(session) for session in sessions}
        shortest, longest = min(lengths.values(), default=0), max(lengths.values(), default=0)
        if shortest == longest:
            continue
        for session in sessions:
            reward = 0.5 - (lengths[session.id] - shortest) / (longest - shortest)
            found[session.id] = reward if (session.score or 0.0) > 0 else min(0.0, reward)
    return found


def sampled_length(session: Session) -> int:
    """The most sampled tokens on one of a session's paths; a turn and its copy are the same tokens."""
    return max((sum(sum(node.trainable) for node in path) for path in session.paths()), default=0)


def _scale(groups: Sequence[Group], adaptive: Adaptive) -> float:
    adaptive.rewards.add((1.0, session.score or 0.0) for group in groups for session in group.scored)
    deviation = adaptive.rewards.deviation
    return 1 / deviation if deviation > SCALE_FLOOR else 1.0
