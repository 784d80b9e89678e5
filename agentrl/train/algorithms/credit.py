"""Credit: the advantage and the weight of each trained node.

An algorithm's `credit` gives each trained node one or more *shares*: a weight and an advantage. One share is
the common case. Several mean that branches below a shared turn give it different advantages; packing then merges
them, into the mean by weight or into two channels (`AlgoConfig.merge`). Sessions that share sampled tokens
are merged in the same way, so there is one rule for both.

Weights hold the normaliser already. They are fixed here, over the whole batch, so that neither the loss nor
its gradient can depend on how packing splits the batch into forests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentrl.config import AlgoConfig
from agentrl.types import Group, Node, Session
from agentrl.types.branches import list_untrained, token_weights

SequenceKind = Literal["turn", "session"]
"""The span of a sequence-level term: a turn's trained tokens, or all trained tokens on a path from a root to a leaf.

A session with several branches or several roots has one sequence for each leaf; see
`agentrl.train.algorithms.sequences`.
"""

NodeKey = tuple[str, int]
"""The session's id, and the node's."""
Values = dict[NodeKey, list[float]]
"""A number for each token of a node, such as the value of the state before it, by session and node."""

Advantage = float | Sequence[float]
"""One number for all of a node's tokens, or one for each of them."""


@dataclass(frozen=True, slots=True)
class NodeAdvantage:
    """A part of a node's credit: `weight` is what each of its trained tokens weighs in the loss.

    Where there is a critic, `values` and `returns` say for each of the node's tokens what it estimated, and what it
    should have.
    """

    advantage: Advantage
    weight: float
    values: Sequence[float] | None = None
    returns: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sequences that a loss compares, each named by its last node: a turn by its own, a path by its leaf.

    Attributes:
        chosen: the better one's session and node.
        rejected: the other one's.
        weight: of the pair in the batch's loss, above 0; the denominator is inside.
    """

    chosen: NodeKey
    rejected: NodeKey
    weight: float


@dataclass(frozen=True, slots=True)
class Label:
    """A verdict on one sequence, which is named as in a `Pair`.

    Attributes:
        sequence: the session, and the last node.
        verdict: 1 where the sequence is desirable, -1 where it is not; 0: it is only measured, and not trained.
        weight: in the batch's loss, above 0; the denominator is inside.
    """

    sequence: NodeKey
    verdict: Literal[-1, 0, 1]
    weight: float


@dataclass(slots=True)
class Credit:
    """Shares by (session id, node id); nodes that are absent are not trained. `metrics` go to the run's log.

    `pairs` is for algorithms with `needs.pairs`, `labels` for those with `needs.labels`; the nodes of their sequences
    need shares, see `agentrl.train.algorithms.pairs`. `added` are groups that are packed besides those that credit was
    given for: sessions that the loss only measures, on the trees of the groups whose ids they have.

    `counts` is for `algo.minibatches`: what each group, by id, adds to the denominator that weights hold
    (`denominators`; None: groups add what their tokens, or pairs, weigh).
    """

    shares: dict[NodeKey, tuple[NodeAdvantage, ...]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    pairs: Sequence[Pair] | None = None
    labels: Sequence[Label] | None = None
    added: Sequence[Group] = ()
    counts: Mapping[str, float] | None = None


def trained_tokens(node: Node, end: int | None = None) -> int:
    """Return how many of a node's tokens before `end` can be trained (a root's first token has no predictor)."""
    count = sum(node.trainable[:end])
    return count - 1 if node.parent is None and node.trainable[:1] == [True] else count


def trainable_nodes(session: Session, *, demonstrated: bool = False) -> list[Node]:
    """The nodes with tokens to train: those an engine sampled and somebody used, or those an expert demonstrated.

    Continuations that only estimate a value (`Branch.trained`) have none.
    """
    left_out, ends = session.uncredited() | list_untrained(session), session.partly_used()
    used = (n for n in session.nodes if n.sampled != demonstrated and n.id not in left_out)
    return [n for n in used if trained_tokens(n, ends.get(n.id))]


def weigh(
    groups: Mapping[str, Sequence[Session]], advantages: Mapping[NodeKey, Sequence[Advantage]], config: AlgoConfig
) -> dict[NodeKey, tuple[NodeAdvantage, ...]]:
    """Fold the normaliser that the configuration names into a weight for each node's shares.

    Every session that is given counts in the denominators, those without signal or without a trained token included:
    how much one session weighs must not depend on how its neighbours fared. So TRL's and verl's losses have it.

    | `normalize` | a trained token weighs 1 over | in TRL; in verl |
    |---|---|---|
    | `rollout` | sessions · trained tokens of its session | `grpo`; `seq-mean-token-mean` |
    | `token` | trained tokens of all sessions | `dapo`; `token-mean` |
    | `group` | groups · trained tokens of its group | |
    | `turn` | trained turns of all sessions · trained tokens of its turn | |
    | `constant` | sessions · `constant_tokens` | `dr_grpo`; `seq-mean-token-sum` over a constant |

    Below a fork of m siblings (`Session.branches`) a token weighs 1/m of that, and counts as 1/m of a token.

    Args:
        groups: the sessions that count, by group id; groups without sessions don't.
        advantages: for each node with trained tokens its advantages, one for each equally likely continuation.
        config: `normalize` and, for `constant`, `constant_tokens`.

    Returns:
        Shares for the nodes in `advantages`. Where every session has trained tokens, the weights of all of those
        tokens sum to 1 (for `constant`: to tokens per session over `constant_tokens`).
    """
    lengths = {session.id: _length(session, advantages) for members in groups.values() for session in members}
    sessions, tokens = len(lengths), sum(lengths.values())
    count = sum(map(bool, groups.values()))
    parts = {s.id: token_weights(s) for members in groups.values() for s in members if s.branches}
    turns = sum(parts[session][node] if session in parts else 1 for session, node in advantages)
    shares: dict[NodeKey, tuple[NodeAdvantage, ...]] = {}
    for members in groups.values():
        in_group = sum(lengths[s.id] for s in members)
        for session in members:
            match config.normalize:
                case "rollout":
                    divisor = sessions * lengths[session.id]
                case "token":
                    divisor = tokens
                case "group":
                    divisor = count * in_group
                case "constant":
                    divisor = sessions * config.constant_tokens
                case "turn":
                    divisor = 0  # each turn has its own
            ends = session.partly_used() if config.normalize == "turn" else {}
            for node in session.nodes:
                if each := advantages.get((session.id, node.id)):
                    if config.normalize == "turn":
                        divisor = turns * trained_tokens(node, ends.get(node.id))
                    weight = (parts[session.id][node.id] if session.id in parts else 1) / (divisor * len(each))
                    shares[session.id, node.id] = tuple(NodeAdvantage(a, weight) for a in each)
    return shares


def denominators(
    groups: Mapping[str, Sequence[Session]], advantages: Mapping[NodeKey, Sequence[Advantage]], config: AlgoConfig
) -> dict[str, float]:
    """Return each group's part of the batch's sum that `weigh` divides by, by group id; arguments as in `weigh`.

    That is its sessions, its trained tokens or turns, or 1, as `normalize` says.
    """

    def turns(session: Session) -> float:
        parts = token_weights(session) if session.branches else None
        credited = [node.id for node in session.nodes if (session.id, node.id) in advantages]
        return math.fsum(1.0 if parts is None else parts[node] for node in credited)

    match config.normalize:
        case "rollout" | "constant":
            return {group: float(len(members)) for group, members in groups.items()}
        case "group":
            return {group: float(bool(members)) for group, members in groups.items()}
        case "token":
            return {group: float(sum(_length(s, advantages) for s in members)) for group, members in groups.items()}
        case "turn":
            return {group: float(sum(map(turns, members))) for group, members in groups.items()}


def _length(session: Session, advantages: Mapping[NodeKey, Sequence[Advantage]]) -> float:
    ends = session.partly_used()
    counts = {n.id: trained_tokens(n, ends.get(n.id)) for n in session.nodes if (session.id, n.id) in advantages}
    if not session.branches:
        return sum(counts.values())
    parts = token_weights(session)
    return sum(parts[node] * count for node, count in counts.items())


def passed_to_helpers(credit: Credit, groups: Sequence[Group], factor: float) -> Credit:
    """The credit with the advantages of helpers' turns multiplied by `factor` (`AlgoConfig.helper_credit`).

    Helpers are the sub-agents of a session's main agent (`Session.main_agent`): other agents without rewards of
    their own. A compaction is the main agent's. With a factor of 0 helpers are not trained; they stay in denominators.
    Sequences with pairs or labels are compared whole, and stay as they are.
    """
    if factor == 1 or credit.pairs is not None or credit.labels is not None:
        return credit
    sessions = [(session, session.main_agent) for group in groups for session in group.sessions]
    helpers = {(session.id, node.id) for session, main in sessions for node in session.nodes if node.agent != main}

    def passed(share: NodeAdvantage) -> NodeAdvantage:
        advantage = share.advantage
        scaled = [factor * a for a in advantage] if isinstance(advantage, Sequence) else factor * advantage
        return replace(share, advantage=scaled)

    shares = {
        key: tuple(map(passed, each)) if key in helpers else each
        for key, each in credit.shares.items()
        if factor or key not in helpers
    }
    return replace(credit, shares=shares)


def ids_by_group(groups: Sequence[Group]) -> dict[str, list[Session]]:
    """The groups' scored sessions by explicit group id; groups of the same id are one."""
    merged: dict[str, list[Session]] = {}
    for group in groups:
        merged.setdefault(group.id, []).extend(group.scored)
    return merged
