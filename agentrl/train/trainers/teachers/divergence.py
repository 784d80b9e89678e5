"""The divergence of the student's head from a teacher, in chunks of rows, with a gradient of its own.

As in `agentrl.train.trainers.head`, a chunk's logits are freed after the forward and computed again in the backward, so
that memory is that of one chunk. The head may be vocabulary-parallel: each rank has its part of the logits, and of the
teacher's where its whole distribution is read, and sums over ranks are of a few numbers per row (k + 3). With o the
student's outcomes, s_o g_o as `outcomes` gives it and H its sum,

    d divergence / d logit_j = (s_j / s_o) (s_o g_o) - s_j H             over the row's temperature

where o is token j itself, or the tail that it is a part of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.train.algorithms.divergences import IDS, LOGPS, STATES, Divergence, outcomes, tail_of
from agentrl.train.forest.distribution import NEVER
from agentrl.train.forest.forest import Rows
from agentrl.train.trainers.head import IDENTITY, Logits, chunk_on, list_chunks

LEAST = -69.0
"""The smallest log of a student's tail, which is computed exactly: that of 1e-30."""


@dataclass(frozen=True, slots=True)
class VocabularyHead:
    """A language-model head, or a rank's part of it.

    Attributes:
        weight: [V / n, d].
        bias: [V / n].
        shape: transforms its outputs into logits.
        group: the n ranks; None is one alone.
        vocabulary: its size without padding; None: all of it.
    """

    weight: Tensor
    bias: Tensor | None = None
    shape: Logits = IDENTITY
    group: dist.ProcessGroup | None = None
    vocabulary: int | None = None

    @property
    def entries(self) -> int:
        """Return how many entries the whole vocabulary has, on all ranks."""
        return self.vocabulary or self.weight.shape[0] * (1 if self.group is None else dist.get_world_size(self.group))

    @property
    def first(self) -> int:
        """The first token id of this rank's part."""
        return 0 if self.group is None else dist.get_rank(self.group) * self.weight.shape[0]

    def to(self, dtype: torch.dtype) -> VocabularyHead:
        """The head in a precision."""
        return replace(self, weight=self.weight.to(dtype), bias=None if self.bias is None else self.bias.to(dtype))

    def moved(self, device: torch.device) -> VocabularyHead:
        """The head as it is now on a device, without a gradient."""
        bias = None if self.bias is None else self.bias.detach().to(device)
        return replace(self, weight=self.weight.detach().to(device), bias=bias)

    def carried(self) -> VocabularyHead:
        """The head for another process."""
        return self.moved(torch.device("cpu"))

    def beside(self, student: VocabularyHead) -> VocabularyHead:
        """This rank's part of a whole head: its rows of the token ids that a student's part has, on its device."""
        if student.group is None:
            return self.moved(student.weight.device)
        own = slice(student.first, student.first + student.weight.shape[0])
        weight, bias = self.weight[own], None if self.bias is None else self.bias[own]
        missing = student.weight.shape[0] - len(weight)
        weight = torch.nn.functional.pad(weight, (0, 0, 0, missing))
        bias = None if bias is None else torch.nn.functional.pad(bias, (0, missing))
        part = replace(self, weight=weight.clone(), bias=bias, group=student.group, vocabulary=self.entries)
        return part.moved(student.weight.device)

    def logps(self, states: Tensor, temperature: Tensor, most: int | None = None) -> Tensor:
        """Log-probabilities of this rank's tokens: [P, V / n]; with `most` the first `most` of the vocabulary alone."""
        logits = self.logits(states, temperature, most)
        return logits.sub_(log_sum(logits, self.group)[:, None])

    def logits(self, states: Tensor, temperature: Tensor, most: int | None = None) -> Tensor:
        """Logits of this rank's tokens over their rows' temperatures: [P, V / n], float32 or wider."""
        outputs = torch.nn.functional.linear(states.to(self.weight.dtype), self.weight, self.bias)
        exact = outputs.dtype == torch.float64 and self.shape == IDENTITY
        logits = (outputs if exact else self.shape(outputs)) / temperature[:, None]
        real = min(x for x in (most, self.vocabulary, self.first + logits.shape[1]) if x is not None) - self.first
        if real < logits.shape[1]:
            logits[:, max(real, 0) :] = NEVER
        return logits


def log_sum(logits: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The log of the sum of exponentials over all ranks' columns: [P]."""
    if group is None:
        return logits.logsumexp(1)
    greatest = logits.amax(1)
    dist.all_reduce(greatest, dist.ReduceOp.MAX, group)
    total = (logits - greatest[:, None]).exp().sum(1)
    dist.all_reduce(total, group=group)
    return total.log() + greatest


def row_divergences(
    divergence: Divergence,
    states: Tensor,
    head: VocabularyHead,
    rows: Rows,
    teacher: VocabularyHead | None = None,
    chunk_elements: int | None = None,
) -> Tensor:
    """Each row's divergence from what the forest's fields hold of its teacher, at the row's temperature: [P], in nats.

    Args:
        divergence: which.
        states: [P, d], the student's hidden states that predict the rows.
        head: the student's.
        rows: P pairs.
        teacher: the teacher's head, for its hidden states, in the same parts as `head`; not used with `top_k`.
        chunk_elements: the most logits to hold at once; None chooses by the device.

    Raises:
        ConfigError: the rows hold hidden states, and there is no head for them here.
    """
    known = {name: column.values for name, column in rows.fields.items()}
    if divergence.top_k is not None:
        teacher = None
    elif teacher is None:
        raise ConfigError("algo.top_k=none needs the teacher's head beside the trainer's: set algo.top_k, such as 64")
    per_row = head.weight.shape[0] * (1 if teacher is None else 2)
    size = max(1, (chunk_elements or chunk_on(states.device)) // per_row)
    told = (known[STATES],) if divergence.top_k is None else (known[IDS].long(), known[LOGPS])
    apply: Any = _Divergence.apply
    more = (rows.temperature, divergence, head, teacher, size, *told)
    kind = states.device.type
    if torch.is_autocast_enabled(kind):
        states = states.to(torch.get_autocast_dtype(kind))
    with torch.autocast(kind, enabled=False):
        return cast(Tensor, apply(states, head.weight, head.bias, *more))


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: Tensor,
        divergence: Divergence,
        head: VocabularyHead,
        teacher: VocabularyHead | None,
        size: int,
        *told: Tensor,
    ) -> Tensor:
        found, slope, normaliser, tail = (temperature.new_zeros(len(states), dtype=_wide(states)) for _ in range(4))
        ctx.of = divergence, head, teacher, size
        head, teacher = head.to(states.dtype), None if teacher is None else teacher.to(states.dtype)
        for at in list_chunks(len(states), size):
            logits = head.logits(states[at], temperature[at], _common(head, teacher))
            normaliser[at] = log_sum(logits, head.group)
            logps = logits.sub_(normaliser[at, None])
            if teacher is not None:
                parts, slopes = outcomes(
                    logps, _teacher_logps(teacher, head, told[0][at], temperature[at]), divergence.beta
                )
            else:
                log_s = _select_logps(logps, told[0][at], head)
                tail[at] = log_s[:, -1]
                parts, slopes = outcomes(log_s, _with_tail(*(each[at] for each in told)), divergence.beta)
            sums = torch.stack((parts.sum(1), slopes.sum(1)))
            if teacher is not None and head.group is not None:
                dist.all_reduce(sums, group=head.group)
            found[at], slope[at] = sums
        ctx.save_for_backward(states, weight, bias, temperature, slope, normaliser, tail, *told)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, temperature, slope, normaliser, tail, *told = ctx.saved_tensors
        divergence, head, teacher, size = ctx.of
        head, teacher = head.to(states.dtype), None if teacher is None else teacher.to(states.dtype)
        states_grad = torch.zeros_like(states)
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for at in list_chunks(len(states), size):
            logits = head.logits(states[at], temperature[at], _common(head, teacher))
            steep = head.shape.slope(logits, temperature[at, None])
            logps = logits - normaliser[at, None]
            if teacher is not None:
                own = outcomes(logps, _teacher_logps(teacher, head, told[0][at], temperature[at]), divergence.beta)[1]
                grad = own - logps.exp() * slope[at, None]
            else:
                ids, named = told
                grad = _of_named(logps, ids[at], named[at], tail[at], slope[at], head, divergence.beta)
            grad = (grad * (gradient[at] / temperature[at])[:, None] * steep).to(states.dtype)
            states_grad[at] = grad @ head.weight
            if weight_grad is not None:
                weight_grad += grad.t() @ states[at]
            if bias_grad is not None:
                bias_grad += grad.sum(0)
        return states_grad, weight_grad, bias_grad, *[None] * (5 + len(told))


def _of_named(
    logps: Tensor, ids: Tensor, teacher: Tensor, tail: Tensor, slope: Tensor, head: VocabularyHead, beta: float
) -> Tensor:
    """The gradient by this rank's logits, before gradient and temperature: [P, V / n]."""
    local, inside = _local(ids, head)
    named = logps.gather(1, local)
    log_s = torch.cat((named, tail[:, None]), 1)
    own = outcomes(log_s, _with_tail(ids, teacher), beta)[1]
    part = own[:, -1:] * (logps - tail[:, None]).exp() - logps.exp() * slope[:, None]
    change = own[:, :-1] - own[:, -1:] * (named - tail[:, None]).exp()
    return part.scatter_add_(1, local, torch.where(inside, change, 0.0))


def _select_logps(logps: Tensor, ids: Tensor, head: VocabularyHead) -> Tensor:
    """The student's log-probabilities of the named tokens, and of the tail: [P, k + 1]."""
    local, inside = _local(ids, head)
    named = torch.where(inside, logps.gather(1, local), 0.0)
    left = logps.exp().scatter_reduce(1, local, (~inside).to(logps), "prod")  # the named ones' are 0
    total = torch.cat((named, left.sum(1, keepdim=True)), 1)
    if head.group is not None:
        dist.all_reduce(total, group=head.group)
    log_tail = total[:, -1:].log().clamp(min=LEAST)
    return torch.cat((total[:, :-1].masked_fill(ids < 0, -torch.inf), log_tail), 1)


def _with_tail(ids: Tensor, logps: Tensor) -> Tensor:
    """The teacher's log-probabilities of the named tokens, and of the tail: [P, k + 1]."""
    logps = logps.masked_fill(ids < 0, -torch.inf)
    return torch.cat((logps, tail_of(logps)[:, None]), 1)


def _teacher_logps(teacher: VocabularyHead, head: VocabularyHead, states: Tensor, temperature: Tensor) -> Tensor:
    """The teacher's log-probabilities of the student's columns; both heads may be padded, each in its own way."""
    logps = teacher.logps(states, temperature, _common(head, teacher))
    missing = head.weight.shape[0] - logps.shape[1]
    return (
        torch.nn.functional.pad(logps, (0, missing), value=NEVER) if missing > 0 else logps[:, : head.weight.shape[0]]
    )


def _common(head: VocabularyHead, teacher: VocabularyHead | None) -> int | None:
    """The entries that both heads have, where there are two; a head alone has its own."""
    return None if teacher is None else min(head.entries, teacher.entries)


def _local(ids: Tensor, head: VocabularyHead) -> tuple[Tensor, Tensor]:
    """Places of token ids in this rank's part, 0 where they lie outside, and which lie inside."""
    local = ids - head.first
    inside = (ids >= 0) & (local >= 0) & (local < head.weight.shape[0])
    return local.where(inside, 0), inside


def _wide(states: Tensor) -> torch.dtype:
    return torch.float64 if states.dtype == torch.float64 else torch.float32
