"""Sessions, groups and random conversation trees for the training tests, and a slow, obvious reference.

The reference knows no forest: every root-to-leaf path is a row of its own that goes through the model alone,
a shared token's weight divided among the rows that hold it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.train.algorithms.credit import Credit, NodeAdvantage
from agentrl.types import FinishReason, Group, Message, Node, Sampling, Session, Status, Task, VersionSpan
from agentrl.types.session import COUNTERFACTUALS

VOCABULARY = 48


def environment_node(session: Session, parent: int | None, ids: Sequence[int], reward: float | None = None) -> Node:
    role = "user" if parent is None else "tool"
    node = Node(
        len(session.nodes), parent, Message(role=role, content="."), list(ids), [False] * len(ids), [0.0] * len(ids)
    )
    node.reward = reward
    session.nodes.append(node)
    return node


def sampled_node(
    session: Session,
    parent: int | None,
    ids: Sequence[int],
    *,
    opening: Sequence[int] = (1, 2),
    logprobs: Sequence[float] | None = None,
    temperature: float = 1.0,
    version: int = 0,
    reward: float | None = None,
    demonstrated: bool = False,
) -> Node:
    tokens, skip = [*opening, *ids], len(opening)
    node = Node(
        len(session.nodes),
        parent,
        Message(role="assistant", content="."),
        tokens,
        [False] * skip + [True] * len(ids),
        [0.0] * skip + list(logprobs if logprobs is not None else [-3.5] * len(ids)),
        reward=reward,
    )
    if not demonstrated:
        node.sampling = Sampling(temperature=temperature)
        node.versions, node.finish_reason = [VersionSpan(version, skip, len(tokens))], FinishReason.STOP
    session.nodes.append(node)
    return node


def linear_session(
    name: str,
    prompt: Sequence[int],
    turns: Sequence[Sequence[int]],
    *,
    reward: float | None = None,
    group: str = "g",
    demonstrated: bool = False,
) -> Session:
    """prompt, then each turn followed by one environment token."""
    session = Session(name, Task(id=group), group=group, status=Status.COMPLETED, reward=reward)
    parent = environment_node(session, None, prompt).id
    for turn in turns:
        parent = sampled_node(session, parent, turn, demonstrated=demonstrated).id
        parent = environment_node(session, parent, [3]).id
    return session


def with_counterfactuals(session: Session) -> Session:
    """The session with what its turns would have come to, had they been drawn again (`algo=coma`)."""
    session.info[COUNTERFACTUALS] = {session.main_agent: {str(turn): [0.25, 0.5] for turn in range(session.turns)}}
    return session


def random_session(rng: random.Random, name: str, prompt: Sequence[int], depth: int, branching: int) -> Session:
    """A tree of turns and answers; siblings may begin alike, so that prefixes merge in the middle of turns."""
    session = Session(name, Task(id="t"), group="g", status=Status.COMPLETED, reward=rng.random())
    root = environment_node(session, None, prompt)
    frontier = [(root.id, 1)]
    while frontier and len(session.nodes) < 30:
        parent, level = frontier.pop(rng.randrange(len(frontier)))
        for _ in range(rng.randint(1, branching) if level < depth else 0):
            if rng.random() < 0.65:
                ids = [rng.choice((5, 6, rng.randrange(8, VOCABULARY))) for _ in range(rng.randint(1, 5))]
                logprobs = [-3.9 + rng.uniform(-0.5, 0.5) for _ in ids]
                node = sampled_node(
                    session,
                    parent,
                    ids,
                    logprobs=logprobs,
                    temperature=rng.choice((1.0, 1.0, 0.7)),
                    version=rng.randrange(10**6),
                )
            else:
                node = environment_node(session, parent, [rng.randrange(3, 9) for _ in range(rng.randint(1, 4))])
            frontier.append((node.id, level + 1))
    return session


def add_extensions(rng: random.Random, session: Session, chance: float = 0.3) -> None:
    """Clients that add something to a turn and go on from there, and sometimes from the turn as it was as well."""
    for turn in [node for node in session.nodes if node.sampled]:
        if rng.random() > chance:
            continue
        taken = rng.randint(turn.versions[0].start + 1, len(turn.token_ids))
        for _ in range(rng.choice((1, 1, 2))):
            ids = [*turn.token_ids[:taken], *(rng.randrange(3, 9) for _ in range(rng.randint(1, 3)))]
            again = environment_node(session, turn.parent, ids)
            again.message, again.copy_of, again.copied_tokens = Message(role="assistant", content="."), turn.id, taken
            if rng.random() < 0.8:
                sampled_node(session, again.id, [rng.randrange(8, 40) for _ in range(rng.randint(1, 3))])


@dataclass
class Row:
    """One path: its tokens, and for each token weight, advantage, old log-probability and temperature."""

    ids: list[int]
    weight: list[float]
    advantage: list[float]
    old: list[float]
    temperature: list[float]


def random_groups(rng: random.Random, groups: int, depth: int, branching: int) -> list[Group]:
    """Groups of three random sessions, whose prompts begin alike."""

    def member(name: str, group: int) -> Session:
        return random_session(rng, name, [8, 9, group + 10], depth=rng.randint(1, depth), branching=branching)

    return [as_group([member(f"{g}{i}", g) for i in range(3)], f"g{g}") for g in range(groups)]


def leaves(session: Session) -> list[int]:
    parents = {node.parent for node in session.nodes}
    return [node.id for node in session.nodes if node.id not in parents]


def path(session: Session, node_id: int | None) -> list[Node]:
    nodes = []
    while node_id is not None:
        nodes.append(session.nodes[node_id])
        node_id = nodes[-1].parent
    return nodes[::-1]


def paths_of(session: Session) -> dict[int, set[int]]:
    """By leaf, the nodes on the path to it."""
    return {leaf: {node.id for node in path(session, leaf)} for leaf in leaves(session)}


def leaf_credit(rng: random.Random, sessions: Sequence[Session]) -> tuple[Credit, dict[tuple[str, int], float]]:
    """Every leaf judges the path above it differently: a share for each leaf, and the leaves' advantages."""
    credit = Credit()
    advantages = {(s.id, leaf): rng.uniform(-2, 2) for s in sessions for leaf in leaves(s)}
    for s in sessions:
        paths = paths_of(s)
        for node in s.nodes:
            below = [leaf for leaf, nodes in paths.items() if node.id in nodes]
            if node.sampled:
                weight = rng.uniform(0.1, 1.0) / 20
                credit.shares[s.id, node.id] = tuple(
                    NodeAdvantage(advantages[s.id, leaf], weight / len(below)) for leaf in below
                )
    return credit, advantages


def rows_of(sessions: Sequence[Session], credit: Credit, advantages: dict[tuple[str, int], float] | None) -> list[Row]:
    """Every path as a row; without `advantages` a node's advantage is the mean of its shares in all rows."""
    rows = []
    for s in sessions:
        paths = paths_of(s)
        for leaf in paths:
            row = Row([], [], [], [], [])
            for node in path(s, leaf):
                shares = credit.shares.get((s.id, node.id), ())
                total = sum(share.weight for share in shares)
                holders = sum(node.id in nodes for nodes in paths.values())
                for i, token in enumerate(node.token_ids):
                    trained = bool(shares) and node.trainable[i]
                    each = [sh.advantage if isinstance(sh.advantage, float) else sh.advantage[i] for sh in shares]
                    mean = sum(a * sh.weight for a, sh in zip(each, shares, strict=True)) / total if shares else 0.0
                    row.ids.append(token)
                    row.weight.append(total / holders if trained else 0.0)
                    row.advantage.append(advantages[s.id, leaf] if advantages else mean)
                    row.old.append(node.logprobs[i])
                    row.temperature.append(node.sampling.temperature if node.sampling else 1.0)
            rows.append(row)
    return rows


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logp, old, advantage) -> value per token."""


def reference_loss(model: torch.nn.Module, rows: Sequence[Row], loss: Loss) -> Tensor:
    """Sum over rows of weight * loss: the rows side by side, padded on the right, which a causal model can't see."""
    longest = max(len(row.ids) for row in rows)

    def padded(values: list[list[float]], fill: float = 0.0) -> Tensor:
        return torch.tensor([v + [fill] * (longest - len(v)) for v in values])[:, 1:]

    ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in rows])
    logits = model(input_ids=ids).logits[:, :-1] / padded([r.temperature for r in rows], 1.0)[..., None]
    logp = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None]).squeeze(2)
    value = loss(logp, padded([r.old for r in rows]), padded([r.advantage for r in rows]))
    return (padded([r.weight for r in rows]) * value).sum()


def as_group(sessions: Sequence[Session], name: str = "g") -> Group:
    return Group(name, Task(id=name), list(sessions))
