"""On-policy distillation (Agarwal et al., arXiv:2306.13649): what a teacher would have said of every sampled token.

By default the teacher's log-probability rewards the token that was sampled:

    r_t = log p_teacher(x_t) - log p_student(x_t)        A_t = sum over s >= t of discount^(s - t) r_s

The student's is that under which the token was sampled, the teacher's is at the same temperature, so that with
`discount=0` the expected gradient is that of the reverse KL divergence of each token's distribution from the teacher's.
On a session with several paths a sum is the mean over the paths below a token. With `divergence` the loss is a
divergence of the two distributions instead, at each sampled token's place (`agentrl.train.algorithms.divergences`).
The environment's rewards are shown, and not learned from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from agentrl.config import Fraction
from agentrl.errors import InvalidInput
from agentrl.train.algorithms import gae
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.base import Needs
from agentrl.train.algorithms.credit import Credit, NodeKey, denominators, ids_by_group, weigh
from agentrl.train.algorithms.divergences import IDS, LOGPS, STATES, Divergence
from agentrl.train.algorithms.fields import ForestField
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found
from agentrl.types import MAIN, Group, Node, Session

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens

Told = Mapping[NodeKey, Mapping[str, Any]]
"""Numbers that a teacher gives for a node's tokens besides their log-probabilities: arrays by their field's name."""
BETAS = {"forward": 0.0, "reverse": 1.0}


class TeacherValues(dict[NodeKey, list[float]]):
    """A teacher's log-probability of each token of a node; `told` is what it says besides, for divergences."""

    def __init__(self, values: Mapping[NodeKey, list[float]], told: Told) -> None:
        super().__init__(values)
        self.told = told


class DistillConfig(UnclippedConfig):
    """Settings of `distill`."""

    only_with: ClassVar[Mapping[str, str]] = {
        "discount": "divergence=sampled",
        "beta": "divergence=jsd",
        **dict.fromkeys(("top_k", "narrowed"), "!divergence=sampled"),
        "privileged_text": "privileged",
    }
    name: str = "distill"
    teacher: str = "teacher"
    """The policy that teaches: a name in `policies`, whose model has the student's tokenizer; or `main`, the policy
    itself as it is (with `privileged`)."""
    teacher_field: str | None = None
    """A field of the task that names the policy that teaches in it; tasks without it have `teacher`."""
    teachers: dict[str, str] = Field({})
    """Policies that teach agents of their own, by the agent's name; they go before `teacher_field`."""
    turns: dict[str, str] = Field({})
    """Policies that teach turns of their own, by the turn's number on its path from 1 (`2`), or from a number on
    (`2+`); they go before all others."""
    discount: Fraction = 0.0
    """Weight of the next token's log-ratio in a token's advantage, and so on: 0 compares each token by itself."""
    divergence: Literal["sampled", "forward", "reverse", "jsd"] = "sampled"
    """The quantity that is learned from: the log-ratio of each sampled token, as its advantage; or, as a loss,
    KL(teacher || student), KL(student || teacher), or the generalised Jensen-Shannon divergence."""
    beta: Fraction = 0.5
    """The teacher's part of the mixture of `divergence=jsd`; 0 is `forward`, 1 `reverse`."""
    top_k: PositiveInt | None = 64
    """The number of the teacher's most probable tokens that a divergence tells apart; all others together are one more.
    None: the whole vocabulary."""
    narrowed: Literal["refuse", "whole"] = "refuse"
    """Turns that were drawn with top-p, top-k, min-p, penalties or a bias, where a divergence is the loss: refused, or
    compared over the whole vocabulary nevertheless."""
    privileged: str | None = None
    """A field of the task that only the teacher reads, such as the answer or a hint."""
    privileged_text: str = "Additional information: {}"
    """Its form, as a paragraph of its own, behind the last message of a user's before a path's first turn."""

    @property
    def named_agents(self) -> Mapping[str, Collection[str]]:
        """Those with a teacher of their own."""
        return {"teachers": self.teachers}

    @field_validator("top_k", mode="before")
    @classmethod
    def _none_is_a_word(cls, value: Any) -> Any:
        return None if value == "none" else value

    @model_validator(mode="after")
    def _settings_fit(self) -> DistillConfig:
        whole = self.divergence != "sampled"
        if whole and self.loss.name != "importance_sampling":
            raise ValueError(f"loss={self.loss.name} is for divergence=sampled: a divergence is a loss of its own")
        if "{}" not in self.privileged_text:
            raise ValueError(f"privileged_text={self.privileged_text!r} needs a {{}}, where the task's field stands")
        if self.privileged is None and self.by_itself:
            raise ValueError(
                f"the policy itself ({MAIN}) teaches nothing new: set privileged=FIELD, or another teacher"
            )
        for turn in self.turns:
            if not turn.removesuffix("+").isdecimal() or int(turn.removesuffix("+")) < 1:
                raise ValueError(
                    f"turns.{turn}: a turn is a number from 1, or one with a + behind it for all from there"
                )
        return self

    @property
    def by_itself(self) -> bool:
        return MAIN in (self.teacher, *self.teachers.values(), *self.turns.values())

    def asked(self, policies: Collection[str]) -> frozenset[str]:
        """The teachers; where a task names its own, any of the policies may be one."""
        named = {self.teacher, *self.teachers.values(), *self.turns.values()} - {MAIN}
        return frozenset(named.union(policies) if self.teacher_field else named)

    def taught_at(self, turn: int) -> str | None:
        """The policy that teaches a turn of its own, by its number from 1; the latest beginning decides."""
        if str(turn) in self.turns:
            return self.turns[str(turn)]
        begun = [start for each in self.turns if each.endswith("+") and (start := int(each[:-1])) <= turn]
        return self.turns[f"{max(begun)}+"] if begun else None


class Distill(PolicyGradient):
    """On-policy distillation from a policy that is not trained by it. All scored sessions are trained on."""

    name = "distill"
    settings = DistillConfig
    about = About(
        "on-policy distillation, arXiv:2306.13649",
        "Σ over later tokens of discount^k (log p_teacher - log p_student)",
        "a model that a larger one, or one trained for the task, can teach on its own samples",
        "TRL: GKDTrainer (beta), with divergence=jsd",
    )
    config: DistillConfig

    teacher = True
    _told: Told | None = None

    @property
    def divergence(self) -> Divergence | None:
        """The divergence of the settings; None where sampled tokens alone are compared."""
        kind = self.config.divergence
        beta, narrowed = BETAS.get(kind, self.config.beta), self.config.narrowed == "whole"
        return None if kind == "sampled" else Divergence(beta, self.config.top_k, narrowed)

    @property
    def needs(self) -> Needs:
        compared = self.divergence
        return replace(super().needs, full_support=compared is not None and not compared.narrowed)

    @property
    def fields(self) -> tuple[ForestField, ...]:
        """The teacher's values of each token, where a divergence is the loss."""
        if self.divergence is None:
            return super().fields
        if self.config.top_k is None:
            states = next((each[STATES] for each in (self._told or {}).values()), None)
            return (ForestField(STATES, self._fill(STATES), shape=() if states is None else states.shape[1:]),)
        shape = (self.config.top_k,)
        ids = ForestField(IDS, self._fill(IDS), dtype="int32", shape=shape, padding=-1)
        return (ids, ForestField(LOGPS, self._fill(LOGPS), shape=shape))

    def _fill(self, name: str) -> Any:
        def fill(session: Session, node: Node) -> Any:
            told = (self._told or {}).get((session.id, node.id))
            return None if told is None else told[name]

        return fill

    def teacher_of(self, session: Session) -> str:
        if session.main_agent in self.config.teachers:
            return self.config.teachers[session.main_agent]
        named = session.task.data.get(self.config.teacher_field) if self.config.teacher_field else None
        return self.config.teacher if named is None else str(named)

    def teachers_by_turn(self, session: Session) -> Mapping[int, str]:
        """The policies that teach turns of their own, by node; a turn's number counts sampled turns of its path."""
        if not self.config.turns:
            return {}
        turns: dict[int | None, int] = {None: 0}
        for node in session.nodes:
            turns[node.id] = turns[node.parent] + (node.sampled or node.copy_of is not None)
        named = {node.id: self.config.taught_at(turns[node.id]) for node in session.nodes if node.sampled}
        return {node: name for node, name in named.items() if name is not None}

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """Compute the credit; with a divergence, which is the loss, every token's advantage is 1."""
        if values is None:
            raise InvalidInput("algo=distill needs a teacher's log-probabilities")
        self._told = values.told if isinstance(values, TeacherValues) else None
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
            if self.divergence is not None:
                found |= {(session.id, node): [1.0] for node in rewards}
                continue
            nothing = {node: [0.0] * len(each) for node, each in rewards.items()}
            for node, each in gae.advantages(session, nothing, self.config.discount, 1.0, rewards=rewards).items():
                found[session.id, node] = [each]
        credit = Credit(weigh(scored, found, self.config), counts=denominators(scored, found, self.config))
        credit.metrics = {"groups/trained": float(sum(map(bool, scored.values())))}
        if ratios:
            credit.metrics["distill/reverse_kl"] = -math.fsum(ratios) / len(ratios)
        return credit

    def loss(self, tokens: Tokens) -> Tensor:
        if self.divergence is None:
            return super().loss(tokens)
        found = tokens.teacher_divergence
        tokens.metrics["distill/divergence"] = found.detach()
        return tokens.advantage * found
