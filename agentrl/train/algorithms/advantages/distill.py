"""On-policy distillation (Agarwal et al., arXiv:2306.13649): a teacher's log-probability rewards every sampled token.

    r_t = log p_teacher(x_t) - log p_student(x_t)        A_t = sum over s >= t of discount^(s - t) r_s

The student's is that under which the token was sampled, the teacher's is at the same temperature, so that with
`discount=0` the expected gradient is that of the reverse KL divergence of each token's distribution from the teacher's.
On a session with several paths a sum is the mean over the paths below a token. The environment's rewards are shown,
and not learned from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from pydantic import Field

from agentrl.config import Fraction
from agentrl.errors import InvalidInput
from agentrl.train.algorithms import gae
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.credit import Credit, NodeKey, denominators, ids_by_group, weigh
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found
from agentrl.types import Group, Session


class DistillConfig(UnclippedConfig):
    """Settings of `distill`."""

    name: str = "distill"
    """As in `AlgoConfig`."""
    teacher: str = "teacher"
    """The policy that teaches: a name in `policies`, whose model has the student's tokenizer."""
    teacher_field: str | None = None
    """A field of the task that names the policy that teaches in it; tasks without it have `teacher`."""
    teachers: dict[str, str] = Field({})
    """Policies that teach agents of their own, by the agent's name; they go before `teacher_field`."""
    discount: Fraction = 0.0
    """Weight of the next token's log-ratio in a token's advantage, and so on: 0 compares each token by itself."""

    def asked(self, policies: Collection[str]) -> frozenset[str]:
        """The teachers; where a task names its own, any of the policies may be one."""
        named = {self.teacher, *self.teachers.values()}
        return frozenset(named.union(policies) if self.teacher_field else named)


class Distill(PolicyGradient):
    """On-policy distillation from a frozen policy. All scored sessions are trained on."""

    name = "distill"
    settings = DistillConfig
    about = About(
        "on-policy distillation, arXiv:2306.13649",
        "Σ over later tokens of discount^k (log p_teacher - log p_student)",
        "a model that a larger one, or one trained for the task, can teach on its own samples",
        "",
    )
    config: DistillConfig

    teacher = True

    def teacher_of(self, session: Session) -> str:
        """The name of the policy that teaches a session, or an agent's view of one."""
        if session.main_agent in self.config.teachers:
            return self.config.teachers[session.main_agent]
        named = session.task.data.get(self.config.teacher_field) if self.config.teacher_field else None
        return self.config.teacher if named is None else str(named)

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """Compute the credit.

        Args:
            groups: those that were selected, in any order.
            values: the teacher's log-probability of each token.

        Raises:
            InvalidInput: there are none.
        """
        if values is None:
            raise InvalidInput("algo=distill needs a teacher's log-probabilities")
        scored = ids_by_group(groups)
        found: Found = {}
        ratios: list[float] = []
        for session in (session for members in scored.values() for session in members):
            places = gae.all_steps(session)
            rewards = {
                node: [t - s for t, s in zip(values[session.id, node], session.nodes[node].logprobs, strict=True)]
                for node in places
            }
            ratios += [rewards[node][i] for node, each in places.items() for i in each]
            nothing = {node: [0.0] * len(each) for node, each in rewards.items()}
            for node, each in gae.advantages(session, nothing, self.config.discount, 1.0, rewards=rewards).items():
                found[session.id, node] = [each]
        credit = Credit(weigh(scored, found, self.config), counts=denominators(scored, found, self.config))
        credit.metrics = {"groups/trained": float(sum(map(bool, scored.values())))}
        if ratios:
            credit.metrics["distill/reverse_kl"] = -math.fsum(ratios) / len(ratios)
        return credit
