"""Steps of training written out in float64, without forests: every path from a root to a leaf is a row of its own.

Nothing of the package computes here: advantages and losses are the papers' (`test_advantages`, `loss_references`),
corrections are `test_corrections`'s, and the optimizer is AdamW as it was published. A session has one reward, at its
end, so all its paths have one advantage; a token that several paths share has a part of its weight on each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.train.algorithms.advantages.ppo import PpoConfig
from agentrl.types import Group, Node, Session
from tests.train.loss_references import REFERENCES
from tests.train.test_advantages import FORMULAS
from tests.train.test_corrections import Policies, weights
from tests.train.trees import leaves, linear_session, path

NOISE = 1e-6
"""Elements of a clipped gradient below this are rounding in float32, of which Adam makes whole steps."""

Key = tuple[str, int]
"""A session and a node of it."""


@dataclass
class Row:
    """A path: its nodes with where each begins, and how many paths of the session go through it."""

    session: Session
    nodes: list[Node]
    starts: list[int]
    holders: list[int]

    @property
    def ids(self) -> list[int]:
        return [token for node in self.nodes for token in node.token_ids]

    @property
    def temperature(self) -> list[float]:
        return [n.sampling.temperature if n.sampling else 1.0 for n in self.nodes for _ in n.token_ids]

    def turns(self) -> Iterator[tuple[Node, int, Tensor]]:
        """Each sampled node with its holders and the places of its trained tokens in the row."""
        for node, start, holders in zip(self.nodes, self.starts, self.holders, strict=True):
            if any(node.trainable):
                yield node, holders, torch.tensor([start + i for i, t in enumerate(node.trainable) if t])


@dataclass
class NaiveRun:
    """A model that takes steps.

    Attributes:
        model: in float64.
        algo: the settings.
        total_steps: of the schedule.
        kl_coef: as it is adapted.
        version: steps taken.
        losses: of the last step's updates.
        norms: of their gradients, before clipping.
        noise: where the last step's gradients were too small to be compared, by parameter.
    """

    model: Any
    algo: AlgoConfig
    total_steps: int
    version: int = 0
    updates: int = 0
    old: dict[Key, Tensor] = field(default_factory=dict)
    measured: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reference = copy.deepcopy(self.model)
        self.kl_coef = self.algo.kl_coef
        self.moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in self.parameters()}
        self.noise: dict[str, Tensor] = {}

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """By name; tied ones once."""
        yield from self.model.named_parameters()

    def step(self, groups: Sequence[Group], order: Sequence[Sequence[Iterable[str]]]) -> None:
        """Take a step.

        Args:
            groups: the step's.
            order: for each epoch, for each update the ids of its sessions, those without trained tokens included.
        """
        advantages = self.judge(groups)
        rows = [row for group in groups for session in group.sessions for row in rows_of(session)]
        with torch.no_grad():
            self.old = self.by_turn(rows, self.logps(self.model, rows)[0])
        self.measured, self.losses, self.norms = [], [], []
        self.noise = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in self.parameters()}
        for updates in order:
            for sessions in updates:
                self.update(groups, rows, advantages, set(sessions))
        if self.algo.kl_target is not None:
            error = float(torch.cat(self.measured).mean()) / self.algo.kl_target - 1
            self.kl_coef *= 1 + self.algo.kl_rate * min(max(error, -0.2), 0.2)
        self.version += 1

    def judge(self, groups: Sequence[Group]) -> dict[str, float]:
        """The advantage of each session that is trained."""
        judged = FORMULAS[self.algo.name]([[stand_in(session) for session in group.sessions] for group in groups])
        advantages: dict[str, float] = {}
        for group, each in zip(groups, judged, strict=True):
            signal = any(abs(a) > 1e-9 for a in each) or self.algo.regularised
            advantages |= {s.id: a for s, a in zip(group.sessions, each, strict=True) if signal}
        return advantages

    def update(self, groups: Sequence[Group], rows: list[Row], advantages: dict[str, float], chosen: set[str]) -> None:
        """Make one update with the sessions that are chosen."""
        part = [Group(g.id, g.task, [s for s in g.sessions if s.id in chosen]) for g in groups]
        rows = [row for row in rows if row.session.id in chosen & advantages.keys()]
        loss = self.loss(rows, advantages, denominators(part, self.algo))
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for _, p in self.parameters() if p.grad is not None]
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        self.losses.append(float(loss.detach()))
        self.norms.append(norm)
        if norm:
            self.move(min(1.0, self.algo.max_grad_norm / (norm + 1e-6)))
        for _, p in self.parameters():
            p.grad = None

    def loss(self, rows: list[Row], advantages: dict[str, float], divisor: dict[Key, float]) -> Tensor:
        """The loss of some rows."""
        own, total = self.algo.loss, torch.zeros((), dtype=torch.float64)  # type: ignore[attr-defined]
        logps, entropies = self.logps(self.model, rows)
        references = [logp.detach() for logp in logps]
        if self.kl_coef:
            with torch.no_grad():
                references, _ = self.logps(self.reference, rows)
        for row, logp, entropy, ref in zip(rows, logps, entropies, references, strict=True):
            name, advantage = row.session.id, advantages[row.session.id]
            turns = list(row.turns())
            found = [self.policies(name, node, logp[at]) for node, _, at in turns]
            whole: Policies = tuple(torch.cat(each) for each in zip(*found, strict=True))  # type: ignore[assignment]
            kind = getattr(own, "sequence", "session")
            values = REFERENCES[own.name](whole[0], whole[1], advantage, own)
            begun = 0
            for (node, holders, at), turn in zip(turns, found, strict=True):
                value = values[begun : begun + len(at)]
                if kind == "turn":
                    value = REFERENCES[own.name](turn[0], turn[1], advantage, own)
                begun += len(at)
                value = value * weights(self.algo.correction, turn, whole, advantage)
                difference = ref[at] - logp[at]
                kl = difference.exp() - 1 - difference
                value = value + self.kl_coef * kl - self.algo.entropy_coef * entropy[at]
                total = total + (value / (divisor[name, node.id] * holders)).sum()
                self.measured += [kl.detach()] if holders == 1 else []
        return total

    def policies(self, session: str, node: Node, logp: Tensor) -> Policies:
        """Of a node's trained tokens: the current, the proximal and the sampling policy's log-probabilities."""
        sampled = torch.tensor([x for x, t in zip(node.logprobs, node.trainable, strict=True) if t]).double()
        stale = node.versions[0].version < self.version
        behaviour = stale and self.algo.correction.proximal == "behaviour"
        return logp, sampled if behaviour else self.old[session, node.id], sampled

    def logps(self, model: Any, rows: list[Row]) -> tuple[list[Tensor], list[Tensor]]:
        """Of each row's tokens, 0 at its first: log-probabilities and entropies."""
        longest = max(len(row.ids) for row in rows)
        ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in rows])
        heat = torch.tensor([row.temperature + [1.0] * (longest - len(row.ids)) for row in rows], dtype=torch.float64)
        logits = model(input_ids=ids).logits[:, :-1] / heat[:, 1:, None]
        every = torch.log_softmax(logits, -1)
        logp = every.gather(2, ids[:, 1:, None]).squeeze(2)
        entropy = -(every.exp() * every).sum(-1)
        start = torch.zeros(1, dtype=torch.float64)
        return ([torch.cat((start, each)) for each in logp], [torch.cat((start, each)) for each in entropy])

    def by_turn(self, rows: list[Row], logps: list[Tensor]) -> dict[Key, Tensor]:
        """Log-probabilities of trained tokens by session and node."""
        return {(r.session.id, n.id): x[at] for r, x in zip(rows, logps, strict=True) for n, _, at in r.turns()}

    @torch.no_grad()
    def move(self, clip: float) -> None:
        """AdamW (arXiv:1711.05101, algorithm 2), decay on matrices only."""
        self.updates += 1
        rate, (one, two) = self.rate(), self.algo.betas
        for name, p in self.parameters():
            if p.grad is None:
                continue
            mean, square = self.moments[name]
            gradient = p.grad * clip
            self.noise[name] |= gradient.abs() < NOISE
            mean.mul_(one).add_((1 - one) * gradient)
            square.mul_(two).add_((1 - two) * gradient.square())
            if p.ndim > 1:
                p -= rate * self.algo.weight_decay * p
            scale = (square / (1 - two**self.updates)).sqrt() + 1e-8
            p -= rate * (mean / (1 - one**self.updates)) / scale

    def rate(self) -> float:
        """Warm-up, then the schedule, by steps."""
        algo, step = self.algo, self.version
        if step < algo.warmup_steps:
            return algo.lr * (step + 1) / (algo.warmup_steps + 1)
        done = (step - algo.warmup_steps) / max(1, self.total_steps - algo.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return algo.lr * {"constant": 1.0, "linear": 1 - done, "cosine": cosine}[algo.schedule]


class NaivePpo(NaiveRun):
    """PPO with a critic on the policy's trunk; sessions have one path each, and a reward at its end.

    A token's advantage is the reward less the value before it, standardised over the step.
    """

    algo: PpoConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        width = self.model.config.hidden_size
        self.head = [torch.zeros(width, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
        self.head_moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.head]
        self.head_updates = 0
        self.judged: dict[Key, Tensor] = {}

    def step(self, groups: Sequence[Group], order: Sequence[Sequence[Iterable[str]]]) -> None:
        """See `NaiveRun`; after it the critic is updated on the parts of the epochs in turn, `value_epochs` times."""
        rows = [row for group in groups for session in group.sessions for row in rows_of(session)]
        keys = [(row.session, node.id, sum(node.trainable)) for row in rows for node, _, _ in row.turns()]
        divisor = denominators(groups, self.algo)
        weight = torch.cat([torch.full((n,), 1 / divisor[s.id, node]).double() for s, node, n in keys])
        reward = torch.cat([torch.full((n,), float(s.reward or 0)).double() for s, node, n in keys])
        if not self.version:
            self.head[1] += (weight * reward).sum() / weight.sum()
        known = self.by_turn(rows, self.values(self.states(rows)))
        advantage = reward - torch.cat([known[s.id, node] for s, node, _ in keys])
        advantage = advantage - (weight * advantage).sum() / weight.sum()
        deviation = ((weight * advantage.square()).sum() / weight.sum()).sqrt()
        parts = (advantage / (deviation + 1e-8)).split([n for _, _, n in keys])
        self.judged = {(s.id, node): part for (s, node, _), part in zip(keys, parts, strict=True)}
        rate = self.rate() * self.algo.value_lr / self.algo.lr
        super().step(groups, order)
        states = {row.session.id: (row, each) for row, each in zip(rows, self.states(rows), strict=True)}
        for epoch in range(self.algo.value_epochs or 0):
            for sessions in order[epoch % len(order)]:
                chosen = [states[name] for name in sessions]
                part = [Group(g.id, g.task, [s for s in g.sessions if s.id in {*sessions}]) for g in groups]
                self.move_head([row for row, _ in chosen], [each for _, each in chosen], part, rate)

    def judge(self, groups: Sequence[Group]) -> dict[str, float]:
        """All sessions; tokens have advantages of their own."""
        return {session.id: 0.0 for group in groups for session in group.sessions}

    def loss(self, rows: list[Row], advantages: dict[str, float], divisor: dict[Key, float]) -> Tensor:
        """The clipped loss, and the critic's in the policy's trunk."""
        own, total = self.algo.loss, torch.zeros((), dtype=torch.float64)
        known = self.by_turn(rows, self.values(self.states(rows, learn=True)))
        for row, logp in zip(rows, self.logps(self.model, rows)[0], strict=True):
            for node, _, at in row.turns():
                key = row.session.id, node.id
                now, proximal, _ = self.policies(row.session.id, node, logp[at])
                ratio, advantage = (now - proximal).exp(), self.judged[key]
                low, high = own.clip_low, own.clip_high  # type: ignore[attr-defined]
                clipped = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
                error = 0.5 * (known[key] - (row.session.reward or 0)).square()
                total = total + ((self.algo.value_coef * error - clipped) / divisor[key]).sum()
        return total

    def states(self, rows: list[Row], *, learn: bool = False) -> list[Tensor]:
        """The hidden state before each row's tokens, zeros before its first: [T, d] each."""
        longest = max(len(row.ids) for row in rows)
        ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in rows])
        with torch.set_grad_enabled(learn):
            hidden = self.model.model(input_ids=ids).last_hidden_state
        return [torch.cat((torch.zeros_like(each[:1]), each[:-1])) for each in hidden]

    def values(self, states: list[Tensor]) -> list[Tensor]:
        """The critic's values."""
        row, bias = self.head
        return [each @ row / math.sqrt(len(row)) + bias for each in states]

    def move_head(self, rows: list[Row], states: list[Tensor], groups: Sequence[Group], rate: float) -> None:
        """One update of the critic's row and bias."""
        divisor = denominators(groups, self.algo)
        slopes = [torch.zeros_like(p) for p in self.head]
        for row, state, value in zip(rows, states, self.values(states), strict=True):
            for node, _, at in row.turns():
                error = (value[at] - (row.session.reward or 0)) / divisor[row.session.id, node.id]
                slopes[0] += error @ state[at] / math.sqrt(state.shape[1])
                slopes[1] += error.sum()
        norm = math.sqrt(sum(float(slope.square().sum()) for slope in slopes))
        clip, (one, two) = min(1.0, self.algo.max_grad_norm / (norm + 1e-6)), self.algo.betas
        self.head_updates += 1
        for p, slope, (mean, square) in zip(self.head, slopes, self.head_moments, strict=True):
            mean.mul_(one).add_((1 - one) * clip * slope)
            square.mul_(two).add_((1 - two) * (clip * slope).square())
            scale = (square / (1 - two**self.head_updates)).sqrt() + 1e-8
            p -= rate * (mean / (1 - one**self.head_updates)) / scale


def stand_in(session: Session) -> Session:
    """A session of one turn with as many trained tokens and the same rewards, as the formulas have them."""
    tokens = sum(sum(node.trainable) for node in session.nodes)
    made = linear_session(session.id, [8, 9], [[30] * tokens], reward=session.reward, group=session.group)
    made.rewards = session.rewards
    return made


def rows_of(session: Session) -> Iterator[Row]:
    """A session's paths."""
    through = [{node.id for node in path(session, leaf)} for leaf in leaves(session)]
    for leaf in leaves(session):
        nodes, at, starts = path(session, leaf), 0, []
        for node in nodes:
            starts.append(at)
            at += len(node.token_ids)
        yield Row(session, nodes, starts, [sum(node.id in each for each in through) for node in nodes])


def denominators(groups: Sequence[Group], algo: AlgoConfig) -> dict[Key, float]:
    """What a trained token of each turn is divided by, over these groups; the table in docs/algorithms.md."""
    groups = [group for group in groups if group.sessions]
    sessions = [session for group in groups for session in group.sessions]
    tokens = {(s.id, n.id): sum(n.trainable) for s in sessions for n in s.nodes if any(n.trainable)}
    found = {}
    for group in groups:
        members = {session.id for session in group.sessions}
        for key, own in tokens.items():
            if key[0] in members:
                found[key] = float(
                    {
                        "rollout": len(sessions) * sum(n for other, n in tokens.items() if other[0] == key[0]),
                        "token": sum(tokens.values()),
                        "turn": len(tokens) * own,
                        "group": len(groups) * sum(n for other, n in tokens.items() if other[0] in members),
                        "constant": len(sessions) * algo.constant_tokens,
                    }[algo.normalize]
                )
    return found
