"""A critic's value of the state before every token that may be trained, by session and node, for credit.

Credit decides what is trained and with which weight, and needs values before it can; so the batch is packed twice.
The first time every trainable token is included. An untrained critic begins at the mean return of its first batch,
the best constant prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentrl.train.algorithms import credit, gae
from agentrl.train.algorithms.base import CriticConfig
from agentrl.train.trainers.base import Critic
from agentrl.types import Group, Node, Session

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.forest.forest import Forest
    from agentrl.train.forest.joint_paths import JointPaths


def compute_values(
    critic: Critic,
    groups: Sequence[Group],
    config: CriticConfig,
    token_budget: int,
    seed: int = 0,
    paths: JointPaths | None = None,
) -> credit.Values:
    """Compute the critic's value before each trainable token of the scored sessions, 0 at other tokens.

    That is its value, or with `normalize_returns` the normalised one.
    """
    start = 0.0 if config.normalize_returns else mean_return(groups, config)
    read = groups if paths is None else paths.groups
    values = per_token(read, lambda forests: critic.values(forests, start), token_budget, seed, config.value_view)
    return values if paths is None else paths.values_by_view(values)


def per_token(
    groups: Sequence[Group],
    compute: Callable[[list[Forest]], list[Tensor]],
    token_budget: int,
    seed: int = 0,
    view: int = 0,
    choose: Callable[[Session], list[Node]] = credit.trainable_nodes,
) -> credit.Values:
    """A number for each trainable token of the scored sessions, 0 at other tokens.

    Args:
        groups: the batch.
        compute: gives the numbers of each forest, [T]; it is called once, or never where nothing is trainable.
        token_budget: tokens of one forest.
        seed: of packing.
        view: how many numbers of `Env.critic_view` are computed with.
        choose: a session's nodes with tokens that count.
    """
    from agentrl.train.forest.packing import pack_with_spans  # which loads torch, and settings are read without it

    nodes = {(s.id, n.id): n for group in groups for s in group.scored for n in choose(s)}
    every = credit.Credit({key: (credit.NodeAdvantage(0.0, 1.0),) for key in nodes})
    packed = list(pack_with_spans(groups, every, token_budget, seed=seed, view=view))
    found = {key: [0.0] * len(node.token_ids) for key, node in nodes.items()}
    if not packed:
        return found
    for (_, spans), number_T in zip(packed, compute([forest for forest, _ in packed]), strict=True):
        number = number_T.tolist()
        for span in spans:
            found[span.node][span.start : span.start + span.length] = number[span.at : span.at + span.length]
    return found


def mean_return(groups: Sequence[Group], config: CriticConfig) -> float:
    """The mean over trained tokens, by their weight in the loss, of the discounted return from each; 0 without any."""
    scored = credit.ids_by_group(groups)
    returns: dict[credit.NodeKey, tuple[credit.Advantage, ...]] = {}
    for session in (session for sessions in scored.values() for session in sessions):
        steps = gae.all_steps(session)
        nothing = {node: [0.0] * len(session.nodes[node].token_ids) for node in steps}
        for node, whole in gae.advantages(session, nothing, config.gamma, 1.0, config.gae_step).items():
            returns[session.id, node] = ([whole[i] for i in steps[node]],)
    weights = {key: share.weight for key, (share,) in credit.weigh(scored, returns, config).items()}
    total = math.fsum(weight * len(returns[key][0]) for key, weight in weights.items())  # type: ignore[arg-type]
    summed = math.fsum(weight * math.fsum(returns[key][0]) for key, weight in weights.items())  # type: ignore[arg-type]
    return summed / total if total else 0.0
