"""Divergences of a student's next-token distribution from a teacher's, over the vocabulary or the teacher's top k.

The generalised Jensen-Shannon divergence (Agarwal et al., arXiv:2306.13649) of the teacher t and the student s is, with
the mixture m = beta t + (1 - beta) s,

    beta KL(t || m) + (1 - beta) KL(s || m)

and, as TRL's GKD has it, the forward KL(t || s) at beta = 0 and the reverse KL(s || t) at beta = 1: the limits of the
above divided by beta (1 - beta). Over the teacher's top k, all other tokens are one outcome more: its mass is what k
leaves of either distribution. By the data processing inequality that is a lower bound, which is 0 where the whole is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IDS, LOGPS, STATES = "teacher_ids", "teacher_logps", "teacher_states"
"""The fields of forests that hold what a teacher says of each token: its k most probable token ids (-1 where it named
fewer) with their log-probabilities, or the hidden state from which its head computes the whole vocabulary's."""
LEAST_TAIL = 1e-6
"""A teacher's tail counts at least this: less can't be told from the rounding of k numbers in float32."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The divergence that an algorithm minimises.

    Attributes:
        beta: 0 is the forward KL, 1 the reverse KL, between them the generalised Jensen-Shannon divergence.
        top_k: how many of the teacher's most probable tokens are told apart; None: all.
        narrowed: also of turns that were drawn from a part of the vocabulary; it is over all of it nevertheless.
    """

    beta: float
    top_k: int | None = None
    narrowed: bool = False


def outcomes(log_s: Tensor, log_t: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Each outcome's part of the divergence, and its part of the gradient.

    With g the derivative of an outcome's part by its probability under the student, the second is s g, up to a constant
    times s: the derivative of the whole by a logit is then s g less s times the sum of s g over the outcomes.

    Args:
        log_s: the student's log-probabilities; -inf is allowed where `log_t` is, too.
        log_t: the teacher's.
        beta: see `Divergence`.
    """
    import torch

    s, t = log_s.exp(), log_t.exp()
    if beta == 0:
        return torch.where(t > 0, t * (log_t - log_s), 0.0), -t
    if beta == 1:
        part = torch.where(s > 0, s * (log_s - log_t), 0.0)
        return part, part
    log_m = torch.logaddexp(log_t + math.log(beta), log_s + math.log1p(-beta))
    of_student = torch.where(s > 0, (1 - beta) * s * (log_s - log_m), 0.0)
    return torch.where(t > 0, beta * t * (log_t - log_m), 0.0) + of_student, of_student


def tail_of(logps: Tensor) -> Tensor:
    """The log of the mass that the named tokens leave, at least `LEAST_TAIL`: [..., k] -> [...]."""
    return (1 - logps.exp().sum(-1)).clamp(min=LEAST_TAIL).log()
