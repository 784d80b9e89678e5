"""Ragged rows for comparisons with other frameworks' functions, and our loss of them with its gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, NodeKey
from agentrl.train.algorithms.objective import add_sums, empty_sums, objective
from agentrl.train.algorithms.pairs import preference_group
from agentrl.train.forest.forest import sequence_count
from agentrl.train.forest.packing import pack
from agentrl.types import GREEDY, Group, Session
from tests.train.trees import as_group, linear_session

PROMPT, OPENING = 2, 2
"""Tokens of a row before its first trained one: the prompt's, and those that open a turn."""


class Rows:
    """Ragged rows: groups of two to four, of one to nine tokens each; arrays are [B, L], float64."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
            return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

        sizes = torch.randint(2, 5, (4,), generator=generator).tolist()
        self.index = [g for g, size in enumerate(sizes) for _ in range(size)]
        count = len(self.index)
        self.lengths = torch.randint(1, 10, (count,), generator=generator).tolist()
        self.mask = (torch.arange(9)[None] < torch.tensor(self.lengths)[:, None]).double()
        self.reward, self.short = random(count), random(count)
        self.baseline = random(len(sizes))
        self.advantage = random(count, low=-2, high=2)
        self.logp = random(count, 9, low=-3, high=-0.1)
        self.old = self.logp + random(count, 9, low=-0.4, high=0.4).clamp(max=-self.logp - 0.05)
        self.ref = self.logp + random(count, 9, low=-0.5, high=0.5)
        self.values = random(count, 9)

    @property
    def rewards(self) -> Tensor:
        """The reward at each row's last token."""
        found = torch.zeros_like(self.mask)
        found[torch.arange(len(self.lengths)), torch.tensor(self.lengths) - 1] = self.reward
        return found

    def sessions(self) -> list[Session]:
        """The rows as sessions; no two begin with the same token."""
        found = []
        for i, (group, length) in enumerate(zip(self.index, self.lengths, strict=True)):
            ids = [[100 + i, *range(30, 29 + length)]]
            session = linear_session(str(i), [8, 9], ids, reward=float(self.reward[i]), group=str(group))
            session.rewards = {"right": float(self.reward[i]), "short": float(self.short[i])}
            found.append(session)
        return found

    def groups(self) -> list[Group]:
        """The sessions, with a greedy one beside each group."""
        found = []
        for g, baseline in enumerate(self.baseline.tolist()):
            greedy = linear_session(f"greedy{g}", [8, 9], [[200]], reward=baseline, group=str(g))
            greedy.phase = GREEDY
            members = [session for session in self.sessions() if session.group == str(g)]
            found.append(as_group([*members, greedy], str(g)))
        return found


class RaggedPairs:
    """Five pairs of ragged rows, those of a pair behind one prompt; arrays are [10, L], float64, the chosen rows first.

    A completion's log-probabilities below the prompt that KTO measures it below are its own, plus a number of each row.
    """

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(1, 10, (10,), generator=generator).tolist()
        self.mask = (torch.arange(9)[None] < torch.tensor(self.lengths)[:, None]).double()
        self.logp = -0.1 - 2.9 * torch.rand(10, 9, generator=generator, dtype=torch.float64)
        self.ref = self.logp + torch.rand(10, 9, generator=generator, dtype=torch.float64) - 0.5
        self.moved = 0.3 * torch.rand(10, 1, generator=generator, dtype=torch.float64)

    def mismatched(self, logp: Tensor) -> Tensor:
        """The log-probability of each row's completion below another prompt."""
        return ((logp + (self.moved if logp is self.logp else 0.0)) * self.mask).sum(1)

    def groups(self) -> list[Group]:
        """A group for each pair; no two rows begin with the same token."""
        sides = [
            linear_session(str(i), [8, 9, 20 + i % 5], [[100 + i, *range(30, 29 + length)]])
            for i, length in enumerate(self.lengths)
        ]
        return [preference_group(f"g{i}", sides[i], sides[5 + i], number=i) for i in range(5)]

    def loss_and_gradient(self, algorithm: Algorithm, budget: int) -> tuple[Tensor, Tensor]:
        """The loss summed over forests of `budget` tokens, and its gradient by the log-probabilities."""
        groups = self.groups()
        forests = pack(groups, algorithm.credit(groups), budget, sequence=algorithm.sequence)
        logp, total = self.logp.clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
        sums = empty_sums(algorithm, sequence_count(forests))
        for last in (False, True):
            for forest in forests:
                each = forest.rows()
                names = [forest.sessions[i] for i in each.session.tolist()]
                row = torch.tensor([int(name.partition("~")[0]) for name in names])
                moved = self.moved[:, 0][row] * torch.tensor(["~" in name for name in names])
                place = forest.position[each.target] - PROMPT - OPENING - 1
                now, each.ref_logp = logp[row, place] + moved, self.ref[row, place]
                if last:
                    total = total + objective(algorithm, now, torch.zeros_like(now), each, sums=sums)[0]
                else:
                    add_sums(algorithm, sums, now, each, 0)
        (gradient,) = torch.autograd.grad(total, logp)
        return total.detach(), gradient


def near(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours.double() - theirs.double()).abs().max()) <= 1e-6 * max(1.0, float(theirs.abs().max()))


def loss_and_gradient(
    algorithm: Algorithm, rows: Rows, shares: Mapping[NodeKey, NodeAdvantage], old: Tensor, budget: int
) -> tuple[Tensor, Tensor]:
    """The loss of all rows, summed over forests of `budget` tokens, and its gradient by their log-probabilities."""
    credit = Credit({key: (share,) for key, share in shares.items()})
    forests = pack([as_group(rows.sessions())], credit, budget, sequence=algorithm.sequence)
    weight = torch.tensor([shares[str(i), 1].weight for i in range(len(rows.index))], dtype=torch.float64)
    for forest in forests:
        row, place = forest.session_id, (forest.position - PROMPT - OPENING).clamp(0, 8)
        forest.behaviour_logp = rows.logp[row, place]  # what verl ranks covariances by
        forest.old_logp, forest.ref_logp = old[row, place], rows.ref[row, place]
        forest.weight = torch.where(forest.weight > 0, weight[row], 0.0)  # those of a forest are rounded
        forest.advantage = forest.advantage.double()
    algorithm.mark(forests)
    logp = rows.logp.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    sums = empty_sums(algorithm, sequence_count(forests))
    for last in (False, True):
        for forest in forests:
            each = forest.rows()
            now = logp[each.session, forest.position[each.target] - PROMPT - OPENING]
            if last:
                total = total + objective(algorithm, now, torch.zeros_like(now), each, sums=sums)[0]
            elif algorithm.sequence is not None:
                add_sums(algorithm, sums, now, each, 0)
    (gradient,) = torch.autograd.grad(total, logp)
    return total.detach(), gradient
