"""Steps of algorithms that judge a turn, or a token, by more than its session's reward, or by what earlier steps left.

As in `naive_steps`, formulas are the papers', and nothing of the package computes. Losses here are of single tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agentrl.types import Group, Session
from tests.train.loss_references import REFERENCES
from tests.train.naive_steps import Key, NaiveRun, Row, rows_of
from tests.train.test_advantages import standardised
from tests.train.test_corrections import Policies, weights
from tests.train.test_prime import by_equation_5, places


class NaiveRae(NaiveRun):
    """arXiv:2506.24119: all sessions here are of one role, whose baseline goes on from step to step."""

    baseline = 0.0

    def judge(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `NaiveRun`."""
        rewards = {s.id: s.reward or 0.0 for group in groups for s in group.sessions}
        for _ in rewards:
            self.baseline = 0.95 * self.baseline + 0.05 * fmean(rewards.values())
        return {name: reward - self.baseline for name, reward in rewards.items()}


class NaiveRemax(NaiveRun):
    """arXiv:2310.10505: less what the group's greedy session earned."""

    def judge(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `NaiveRun`."""
        found: dict[str, float] = {}
        for group in groups:
            [greedy] = group.greedy
            judged = {s.id: (s.reward or 0.0) - (greedy.reward or 0.0) for s in group.scored}
            found |= judged if any(judged.values()) or self.algo.regularised else {}
        return found


class NaiveByTurn(NaiveRun):
    """Tokens have advantages of their own; turns that have none are not trained."""

    judged: dict[Key, list[float]]

    def loss(self, rows: list[Row], advantages: dict[str, float], divisor: dict[Key, float]) -> Tensor:
        """See `NaiveRun`."""
        own, total = self.algo.loss, torch.zeros((), dtype=torch.float64)  # type: ignore[attr-defined]
        for row, logp in zip(rows, self.logps(self.model, rows)[0], strict=True):
            turns = [turn for turn in row.turns() if (row.session.id, turn[0].id) in self.judged]
            found = [self.policies(row.session.id, node, logp[at]) for node, _, at in turns]
            if not turns:
                continue
            whole: Policies = tuple(torch.cat(each) for each in zip(*found, strict=True))  # type: ignore[assignment]
            for (node, holders, _), turn in zip(turns, found, strict=True):
                for place, advantage in enumerate(self.judged[row.session.id, node.id]):
                    now, proximal, sampled = (each[place : place + 1] for each in turn)
                    value = REFERENCES[own.name](now, proximal, advantage, own)
                    value = value * weights(self.algo.correction, (now, proximal, sampled), whole, advantage)
                    total = total + (value / (divisor[row.session.id, node.id] * holders)).sum()
        return total


class NaiveGigpo(NaiveByTurn):
    """arXiv:2505.10978: all first turns of a group are in one state, and all others in another one."""

    def judge(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `NaiveRun`."""
        self.judged = {}
        for group in groups:
            episode = standardised([session.reward or 0.0 for session in group.sessions])
            states: dict[bool, dict[Key, list[float]]] = {True: {}, False: {}}
            counts: dict[Key, int] = {}
            for session, advantage in zip(group.sessions, episode, strict=True):
                for turns in ([*row.turns()] for row in rows_of(session)):
                    for place, (node, _, at) in enumerate(turns):
                        key, later = (session.id, node.id), len(turns) - 1 - place
                        states[place == 0].setdefault(key, []).append(0.95**later * (session.reward or 0.0))
                        self.judged[key], counts[key] = [advantage] * len(at), len(at)
            for members in states.values():
                step = standardised([fmean(each) for each in members.values()]) if len(members) > 1 else [0.0]
                for key, advantage in zip(members, step, strict=False):
                    self.judged[key] = [advantage + each for each in self.judged[key]]
        return {key[0]: 0.0 for key in self.judged}


class NaiveVine(NaiveByTurn):
    """arXiv:2410.01679: by how much the mean return of continuations rose; these are not trained."""

    def judge(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `NaiveRun`; the first state's continuations are the group's other sessions as well."""
        self.judged = {}
        for group, session in ((each, session) for each in groups for session in each.sessions):
            main = session.branches[0]
            turns = [node for node in session.nodes[: main.end] if any(node.trainable)]
            values = []
            for place, node in enumerate(turns):
                known = [b.reward or 0.0 for b in session.branches if b.head == node.parent]
                others = [other.score or 0.0 for other in group.sessions if other is not session and place == 0]
                values.append(fmean(known + others))
            values.append(main.reward or 0.0)
            for node, (before, after) in zip(turns, pairwise(values), strict=True):
                self.judged[session.id, node.id] = [after - before] * sum(node.trainable)
        return {key[0]: 0.0 for key in self.judged}

    def update(self, groups: Sequence[Group], rows: list[Row], advantages: dict[str, float], chosen: set[str]) -> None:
        """See `NaiveRun`; denominators count what is trained."""
        own = [
            replace(g, sessions=[replace(s, nodes=s.nodes[: s.branches[0].end]) for s in g.sessions]) for g in groups
        ]
        super().update(own, rows, advantages, chosen)


class NaivePrime(NaiveByTurn):
    """arXiv:2502.01456; the reward model takes one step of AdamW on the cross-entropy of outcomes, after the policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rewarder = NaiveRun(copy.deepcopy(self.model), self.algo, self.total_steps)

    def step(self, groups: Sequence[Group], order: Any) -> None:
        """See `NaiveRun`."""
        super().step(groups, order)
        sessions = [session for group in groups for session in group.sessions]
        sums = [each.sum() for each in self.process(sessions)]
        outcomes = torch.tensor([session.reward or 0.0 for session in sessions], dtype=torch.float64)
        F.binary_cross_entropy_with_logits(torch.stack(sums), outcomes).backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for _, p in self.rewarder.parameters() if p.grad is not None]
        norm = float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
        self.rewarder.noise = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in self.rewarder.parameters()}
        self.rewarder.move(min(1.0, self.algo.max_grad_norm / (norm + 1e-6)))
        self.rewarder.version += 1
        for _, p in self.rewarder.parameters():
            p.grad = None

    def process(self, sessions: Sequence[Session]) -> list[Tensor]:
        """Each session's process rewards, of its trained tokens in order."""
        rows = [row for session in sessions for row in rows_of(session)]
        learned, _ = self.logps(self.rewarder.model, rows)
        with torch.no_grad():
            known, _ = self.logps(self.reference, rows)
        beta = self.algo.reward_beta  # type: ignore[attr-defined]
        at = [torch.cat([place for _, _, place in row.turns()]) for row in rows]
        return [beta * (a[i] - b[i]) for a, b, i in zip(learned, known, at, strict=True)]

    @torch.no_grad()
    def judge(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `NaiveRun`."""
        self.judged = {}
        for group in groups:
            rewards = {(s.id, n.id): [0.0] * len(n.token_ids) for s in group.sessions for n in s.nodes}
            for session, found in zip(group.sessions, self.process(group.sessions), strict=True):
                for (node, place), reward in zip(places(session), found.tolist(), strict=True):
                    rewards[session.id, node][place] = reward
            for (name, node, _), advantage in by_equation_5(group, rewards, 1.0).items():
                self.judged.setdefault((name, node), []).append(advantage)
        return {key[0]: 0.0 for key in self.judged}
