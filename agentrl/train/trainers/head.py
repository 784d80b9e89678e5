"""Log-probabilities of the trained tokens, without holding the logits of all tokens at once.

Only hidden states that predict a trained token go through the language-model head. Rows are computed in chunks; where
there is more than one, a chunk's logits are freed after the forward and recomputed in the backward, so
memory is bounded by one chunk and not by rows times vocabulary. A head that is a plain matrix has a backward of its own
(`vocabulary_logps`), which adds to one gradient of the matrix and, under autocast, casts the matrix once a pass; with a
bias, autograd does both for each chunk.

A row whose target was not drawn from the whole vocabulary has its log-probability and entropy over the set that it was
drawn from, of logits that penalties and a bias have changed (`Drawn`); rows without cost nothing of it. Where all rows
of a chunk have short sets, only these tokens' logits are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl.train.forest.distribution import NEVER, Drawn, Slopes, VocabularyPart
from agentrl.train.forest.forest import Rows

CHUNK_ELEMENTS = 1 << 24
"""Logits of one chunk: 64 MB in float32, several times that with what softmax keeps."""
GPU_CHUNK_ELEMENTS = 1 << 26
"""`CHUNK_ELEMENTS` on a GPU, where each chunk reads and writes the whole gradient of the head."""
BLOCK_ELEMENTS = 1 << 19
"""Logits of one block of rows on a CPU: softmax and its gradient read a block several times, from the cache."""


@dataclass(frozen=True, slots=True)
class Logits:
    """The transformation of a model's head outputs into logits.

    Attributes:
        scale: what they are multiplied with.
        cap: c, where logits z become c * tanh(z / c) afterwards (Gemma 2, arXiv:2408.00118).
    """

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, config: Any) -> Logits:
        """Read a transformers configuration: Cohere multiplies by `logit_scale`, Granite has a divisor."""
        text = config.get_text_config()
        scale = getattr(text, "logit_scale", None) or 1.0
        divisor = getattr(text, "logits_scaling", None) or 1.0
        return cls(scale / divisor, getattr(text, "final_logit_softcapping", None))

    def __call__(self, outputs: Tensor) -> Tensor:
        logits = outputs.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def slope(self, logits: Tensor, temperature: Tensor) -> Tensor | float:
        """The derivative of logits by the head's outputs, from the logits over their temperatures."""
        if self.cap is None:
            return self.scale
        return self.scale * (1 - (logits * temperature / self.cap).clamp(-1, 1).square())


IDENTITY = Logits()


def token_logps(
    head: nn.Module, hidden: Tensor, rows: Rows, chunk_elements: int | None = None, shape: Logits = IDENTITY
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each row's target at its temperature, over what it was drawn from.

    Under autocast the head is computed in its precision, and what follows in float32.

    Args:
        head: the language-model head, [*, d] -> [*, V].
        hidden: [T, d], the last hidden states of the whole forest.
        rows: P pairs.
        chunk_elements: the most logits to hold at once; None chooses by the device.
        shape: transforms the head's outputs into logits.

    Returns:
        logp [P] and entropy [P] in nats, float32.
    """
    vocabulary = int(cast(Tensor, head.weight).shape[0])
    size = max(1, (chunk_elements or chunk_on(hidden.device)) // vocabulary)
    states = hidden.index_select(0, rows.predictor)
    drawn = Drawn.of(rows)
    precision = _precision(head, states)
    if len(rows) <= size and (drawn is None or precision is None):
        return _chunk(head, shape, states, rows.token_ids, rows.temperature, drawn)
    if precision is not None:
        weight = cast(Tensor, head.weight)
        with torch.autocast(states.device.type, enabled=False):
            return vocabulary_logps(
                states.to(precision),
                weight,
                rows.token_ids,
                rows.temperature,
                chunk_elements=chunk_elements,
                shape=shape,
                drawn=drawn,
            )
    parts = [
        checkpoint(
            _chunk,
            head,
            shape,
            states[i : i + size],
            rows.token_ids[i : i + size],
            rows.temperature[i : i + size],
            None if drawn is None else drawn[i : i + size],
            use_reentrant=False,
        )
        for i in range(0, len(rows), size)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def chunk_on(device: torch.device) -> int:
    """Return the most logits of one chunk on a device."""
    return GPU_CHUNK_ELEMENTS if device.type == "cuda" else CHUNK_ELEMENTS


def _precision(head: Any, states: Tensor) -> torch.dtype | None:
    """The precision of a head that is a plain matrix; None: it is none, or of another precision."""
    if type(head) is not nn.Linear or getattr(head, "bias", None) is not None:
        return None
    kind = states.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return states.dtype if head.weight.dtype == states.dtype else None


def _chunk(
    head: nn.Module, shape: Logits, states: Tensor, targets: Tensor, temperature: Tensor, drawn: Drawn | None
) -> tuple[Tensor, Tensor]:
    logits = shape(head(states))
    if drawn is None:
        logits = logits / temperature[:, None]
    else:
        part = VocabularyPart(0, logits.shape[1])
        logits = drawn.hide(drawn.change(logits, part)[0] / temperature[:, None], part)
    logps = torch.log_softmax(logits, -1)
    entropy = -(logps.exp() * logps).sum(-1)
    return logps.gather(1, targets[:, None]).squeeze(1), entropy


def read_scores(head: Callable[[Tensor], Tensor], states: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The score of each row, or with several classes the log-probability of its label.

    Args:
        head: a linear one, [*, d] -> [*, K].
        states: [P, d], the last hidden state of each row's target.
        rows: P rows; with several classes their field `target` is the label's number.

    Returns:
        Scores, or log-probabilities in nats, [P], and the entropy of the classes, [P] (0 for a score), in float32.
    """
    outputs = head(states).float()
    if outputs.shape[1] == 1:
        return outputs[:, 0], torch.zeros_like(outputs[:, 0]).detach()
    logps = torch.log_softmax(outputs, -1)
    label = rows.fields["target"].values.long()
    return logps.gather(1, label[:, None]).squeeze(1), -(logps.exp() * logps).sum(-1)


def vocabulary_logps(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    vocabulary: int | None = None,
    chunk_elements: int | None = None,
    shape: Logits = IDENTITY,
    drawn: Drawn | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each row's target, in chunks, with a head that may be vocabulary-parallel.

    Each rank multiplies the rows with its own part of the head. Three sums over ranks per chunk (the greatest logit,
    the sum of exponentials with the sum that entropy needs, the target's logit) are all that is communicated: 4 numbers
    per row, where a gather would send the vocabulary.

    The backward needs no collective in here: from the row's saved log-normaliser and entropy, a rank recomputes its
    logits and the gradient of its part. So memory is one chunk, for any number of rows. The hidden states' gradients
    are summed over ranks by the caller's region (all-reduce, or reduce-scatter under sequence parallelism).

        d logp / d logit_j    = [j = target] - p_j
        d entropy / d logit_j = -p_j (log p_j + entropy)             both over the row's temperature

    times the derivative of the transformation of the head's outputs (a factor, a cap).

    Args:
        states: [P, d], the rows that predict; their precision is that of the products.
        weight: [V / n, d], this rank's part of the head; its gradient is summed in its own precision.
        targets: [P] token ids.
        temperature: [P].
        group: the n tensor-parallel ranks; None is one alone.
        vocabulary: its size without padding.
        chunk_elements: the most logits to hold at once; None chooses by the device.
        shape: transforms the head's outputs into logits.
        drawn: what the targets were drawn from; None: the softmax over the whole vocabulary.

    Returns:
        logp [P] and entropy [P] in nats, float32, the same on every rank.
    """
    rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    first = rank * weight.shape[0]
    real = (vocabulary or weight.shape[0] * ranks) - first
    rows = max(1, (chunk_elements or chunk_on(states.device)) // weight.shape[0])
    apply: Any = _Head.apply
    out = apply(states, weight, targets, temperature, first, real, rows, group if ranks > 1 else None, shape, drawn)
    return cast(tuple[Tensor, Tensor], out)


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: Tensor,
        first: int,
        real: int,
        rows: int,
        group: dist.ProcessGroup | None,
        shape: Logits,
        drawn: Drawn | None,
    ) -> tuple[Tensor, Tensor]:
        logp, entropy, normaliser = (states.new_zeros(len(targets), dtype=torch.float32) for _ in range(3))
        kept, matrix = None, weight.to(states.dtype)
        for at in list_chunks(len(targets), rows):
            if drawn is not None:
                own = drawn[at]
                part = own.part(first, weight.shape[0])
                logits, _, _ = _narrow(own, part, states[at], matrix, temperature[at], real, shape)
            else:
                part = VocabularyPart(first, weight.shape[0])
                logits = _logits(states[at], matrix, temperature[at], real, shape)
                if len(targets) <= rows:
                    kept = logits.clone()
            local, inside = _find_targets(part, targets[at])
            for block in _blocks(logits, group):
                found = _reduce(logits[block], local[block], inside[block], group)
                logp[at][block], entropy[at][block], normaliser[at][block] = found
        ctx.save_for_backward(states, weight, targets, temperature, entropy, normaliser, kept)
        ctx.place = first, real, rows, shape, drawn
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, logp_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, targets, temperature, entropy, normaliser, kept = ctx.saved_tensors
        first, real, rows, shape, drawn = ctx.place
        states_grad, matrix = torch.zeros_like(states), weight.to(states.dtype)
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for at in list_chunks(len(targets), rows):
            part, used, slopes = VocabularyPart(first, weight.shape[0]), matrix, None
            if drawn is not None:
                own = drawn[at]
                part = own.part(first, weight.shape[0])
                used = matrix if part.columns is None else matrix[part.columns]
                logits, slope, slopes = _narrow(own, part, states[at], matrix, temperature[at], real, shape)
            else:
                logits = kept if kept is not None else _logits(states[at], matrix, temperature[at], real, shape)
                slope = shape.slope(logits, temperature[at, None])
            local, inside = _find_targets(part, targets[at])
            grad = logits if kept is None else torch.empty_like(logits)
            own_rows = temperature[at], logp_grad[at], entropy_grad[at], entropy[at], normaliser[at], local, inside
            for block in _blocks(logits):
                _differentiate(logits[block], *(each[block] for each in own_rows), out=grad[block])
                if isinstance(slope, Tensor):
                    grad[block].mul_(slope[block])
                elif slope != 1.0:
                    grad[block].mul_(slope)
            if slopes is not None:
                grad[slopes.row, slopes.place] *= slopes.slope
            grad = grad.to(states.dtype)
            states_grad[at] = grad @ used
            if weight_grad is None:
                continue
            if part.columns is not None:
                weight_grad.index_add_(0, part.columns, (grad.t() @ states[at]).to(weight.dtype))
            elif weight.dtype == states.dtype:
                weight_grad.addmm_(grad.t(), states[at])
            else:
                weight_grad.add_(grad.t() @ states[at])
        return states_grad, weight_grad, *[None] * 8


def list_chunks(length: int, rows: int) -> list[slice]:
    """Return the parts of so many rows, of at most `rows` each."""
    return [slice(start, start + rows) for start in range(0, length, rows)]


def _blocks(logits: Tensor, group: dist.ProcessGroup | None = None) -> list[slice]:
    """Rows that are computed together: few on a CPU, all where a block would be a collective or a kernel of its own."""
    few = logits.device.type == "cpu" and group is None
    return list_chunks(len(logits), max(1, BLOCK_ELEMENTS // max(1, logits.shape[1])) if few else len(logits))


def _differentiate(
    logits: Tensor,
    temperature: Tensor,
    logp_grad: Tensor,
    entropy_grad: Tensor,
    entropy: Tensor,
    normaliser: Tensor,
    local: Tensor,
    inside: Tensor,
    *,
    out: Tensor,
) -> None:
    """Write the loss's derivatives by the logits, before their temperatures, to `out`, which may be the logits."""
    logp = torch.sub(logits, normaliser[:, None], out=out)
    p = logp.exp()
    # Row by row p (a logp + b): few passes over a block.
    a = -entropy_grad / temperature
    b = -(logp_grad + entropy_grad * entropy) / temperature
    torch.addcmul(b[:, None], a[:, None], logp, out=out).mul_(p)
    out.scatter_add_(1, local[:, None], (logp_grad * inside / temperature)[:, None])


def _logits(states: Tensor, weight: Tensor, temperature: Tensor, real: int, shape: Logits) -> Tensor:
    logits = shape(states @ weight.t())
    if logits.device.type != "cpu" or bool((temperature != 1).any()):  # elsewhere, asking would wait for the device
        logits.div_(temperature[:, None])
    if real < weight.shape[0]:
        logits[:, max(real, 0) :] = NEVER
    return logits


def _narrow(
    drawn: Drawn, part: VocabularyPart, states: Tensor, matrix: Tensor, temperature: Tensor, real: int, shape: Logits
) -> tuple[Tensor, Tensor | float, Slopes | None]:
    """Logits over temperatures as targets were drawn from them, and the derivatives of both changes."""
    used = matrix if part.columns is None else matrix[part.columns]
    logits = shape(states @ used.t())
    slope = shape.slope(logits, torch.ones_like(temperature)[:, None])
    logits, slopes = drawn.change(logits, part)
    logits = drawn.hide(logits.div_(temperature[:, None]), part)
    if part.columns is None and real < logits.shape[1]:
        logits[:, max(real, 0) :] = NEVER
    return logits, slope, slopes


def _reduce(
    logits: Tensor, index: Tensor, inside: Tensor, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the target, entropy, and log-normaliser of each row: [P] each. Logits are overwritten."""
    greatest = logits.amax(1)
    if group is not None:
        dist.all_reduce(greatest, dist.ReduceOp.MAX, group)
    shifted = logits.sub_(greatest[:, None])
    weights = shifted.exp()
    target = shifted.gather(1, index[:, None]).squeeze(1) * inside
    sums = torch.stack((weights.sum(1), torch.linalg.vecdot(weights, shifted), target))
    if group is not None:
        dist.all_reduce(sums, group=group)
    log_sum = sums[0].log()
    return sums[2] - log_sum, log_sum - sums[1] / sums[0], log_sum + greatest


def _find_targets(part: VocabularyPart, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The targets' places in this rank's part, 0 where they lie outside, and 1.0 where they lie inside."""
    place, inside = part.find(targets)
    return place, inside.float()
