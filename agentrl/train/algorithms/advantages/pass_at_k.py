"""GRPO for pass@k: a sample is worth what it adds to the best of k samples.

Chen et al., Pass@k Training (arXiv:2508.10751, section 2.3), for rewards of 0 and 1; the best of k in place of their
pass or fail, so that any reward will do (as Walder and Karkhanis, arXiv:2505.15201, have it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import PositiveInt

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.branch_returns import SAME
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.returns import Found, by_session, scores
from agentrl.types import Session


class PassAtKConfig(PolicyGradientConfig):
    """Settings of `pass_at_k`."""

    k: PositiveInt = 4
    """The number of samples of which the best one counts; a smaller group has its own size less 1."""


class PassAtK(PolicyGradient):
    """The mean best score over the k-subsets with a session, less that over all of them, over its deviation."""

    name = "pass_at_k"
    settings = PassAtKConfig
    about = About(
        "Pass@k Training, arXiv:2508.10751",
        "(E[best of k with the session] - E[best of k]) / std(best of k), over the group's subsets of size k",
        "exploration; evaluation by pass@k",
        "verl: grpo_passk (another formula, arXiv:2503.19595)",
    )
    group_size = 2
    whole_sessions = True
    config: PassAtKConfig

    def judge(self, sessions: Sequence[Session]) -> Found:
        return by_session(sessions, best_of_k(scores(sessions), self.config.k))


def best_of_k(scores: Sequence[float], k: int) -> list[float]:
    """Each sample's advantage for the best of k; zeros where nothing differs.

    Sorted scores r_1 <= … <= r_n: r_j is the best of C(j - 1, k - 1) of the C(n, k) subsets. Of those with sample i it
    is the best of C(j - 2, k - 2) where j > i, and r_i itself of C(i - 1, k - 1).
    """
    n = len(scores)
    k = min(k, n - 1)
    if k < 1:
        return [0.0] * n
    order = sorted(range(n), key=scores.__getitem__)
    ranked = [scores[i] for i in order]
    subsets = [math.comb(j, k - 1) / math.comb(n, k) for j in range(n)]
    mean = math.fsum(share * x for share, x in zip(subsets, ranked, strict=True))
    deviation = math.sqrt(math.fsum(share * (x - mean) ** 2 for share, x in zip(subsets, ranked, strict=True)))
    if deviation < SAME:
        return [0.0] * n
    above = [math.comb(j - 1, k - 2) * ranked[j] if j and k > 1 else 0.0 for j in range(n)]
    with_it = [
        (math.comb(i, k - 1) * ranked[i] + math.fsum(above[i + 1 :])) / math.comb(n - 1, k - 1) for i in range(n)
    ]
    found = [0.0] * n
    for i, value in zip(order, with_it, strict=True):
        found[i] = (value - mean) / deviation
    return found
