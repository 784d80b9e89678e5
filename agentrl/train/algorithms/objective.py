"""The loss of a forest, the sums that sequence-level losses need, and the metrics that describe a step.

Two advantage channels are two calls of the algorithm's loss: a clipped loss is positively homogeneous, so for
advantages of one sign the loss of a sum is the sum of losses, and A+ and A- together equal the sum over all branches
exactly. A sequence-level loss has an entry for each path instead, and needs no channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.base import Algorithm
from agentrl.train.algorithms.corrections import importance
from agentrl.train.algorithms.kl import kl_loss
from agentrl.train.algorithms.losses import k3, value_error
from agentrl.train.algorithms.tokens import Tokens, is_stale, old_policy
from agentrl.train.forest.forest import Rows


def objective(
    algorithm: Algorithm,
    logp: Tensor,
    entropy: Tensor,
    rows: Rows,
    *,
    version: int = 0,
    values: Tensor | None = None,
    sums: Tensor | None = None,
    divergence: Tensor | None = None,
) -> tuple[Tensor, Tokens]:
    """The loss of one forest: a scalar whose sum over a batch's forests is the batch's loss.

    Args:
        algorithm: the algorithm.
        logp: [P].
        entropy: [P].
        rows: the forest's.
        version: the policy version that is being trained.
        values: [P], where there is a critic.
        sums: of the batch's sequences over all forests and ranks, where `algorithm.sequence` is given; see
            `empty_sums`.
        divergence: [P], from the teacher, where the algorithm reads one (`Algorithm.divergence`).

    Returns:
        The loss, and the tokens with what the algorithm measured.
    """
    config, adaptive = algorithm.config, algorithm.adaptive
    tokens = Tokens.of(logp, entropy, rows, version, config.correction.proximal)
    tokens._teacher_divergence = divergence
    if not len(rows):  # of a forest that only keeps a rank busy: it goes backward with the others
        return logp.sum(), tokens
    value = _token_losses(algorithm, tokens, rows, sums)
    if adaptive.kl_coef and config.kl_as == "loss" and rows.ref_logp is not None:
        value = value + adaptive.kl_coef * kl_loss(tokens, config.kl_estimator, config.kl_gradient)
    if adaptive.entropy_coef:
        value = value - adaptive.entropy_coef * entropy
    if values is not None:
        critic = algorithm.critic_config
        value = value + critic.value_coef * value_error(values, rows, critic.value_clip)
    return (rows.weight * value).sum(), tokens


def _token_losses(algorithm: Algorithm, tokens: Tokens, rows: Rows, sums: Tensor | None) -> Tensor:
    """The algorithm's loss for each row: [P]; `tokens.metrics` get what it measured."""
    correction = algorithm.config.correction
    missing = [field.name for field in algorithm.fields if field.name not in rows.fields]
    if missing:
        raise InvalidInput(f"the forest was packed without {missing}: give `pack` the algorithm's `fields`")
    if algorithm.sequence is not None:
        if sums is None:
            raise InvalidInput("the loss is of whole sequences: give `objective` their sums")
        pairs = tokens.by_sequence(rows, sums, algorithm.summand)
        value = algorithm.loss(pairs)
        if correction.active:
            value = value * importance(correction, pairs, rows.sequences, sums)
        if algorithm.needs.labels:
            judged = pairs.advantage != 0
            value = value * judged
            tokens.judged = _per_row(judged.double(), pairs, rows)
            pairs.weighted = {name: measured * judged for name, measured in pairs.weighted.items()}
        value = _per_row(value, pairs, rows).to(tokens.logp.dtype)
        if algorithm.needs.pairs:
            value = value - value.detach() / 2  # both sides of a pair have its loss, each with its own sum's gradient
        tokens.metrics |= {name: _per_row(measured, pairs, rows) for name, measured in pairs.metrics.items()}
        tokens.weighted |= {name: _per_row(measured.double(), pairs, rows) for name, measured in pairs.weighted.items()}
        return value
    if rows.advantage_minus is not None and algorithm.affine:
        whole = tokens.with_advantage(rows.advantage + rows.advantage_minus)
        value = algorithm.loss(whole)
        tokens.metrics |= whole.metrics
        return value * importance(correction, tokens, None, None) if correction.active else value
    value = algorithm.loss(tokens)
    if rows.advantage_minus is not None:
        other = tokens.with_advantage(rows.advantage_minus)
        value = value + algorithm.loss(other)
        for name, measured in other.metrics.items():
            tokens.metrics[name] = tokens.metrics[name] + measured if name in tokens.metrics else measured
    return value * importance(correction, tokens, None, None) if correction.active else value


def _per_row(values: Tensor, pairs: Tokens, rows: Rows) -> Tensor:
    """The pairs' values by their part of their row's weight: [Q] -> [P]."""
    row = rows.require_sequences().token
    part = pairs.weight / rows.weight[row]
    return torch.zeros_like(rows.weight, dtype=values.dtype).index_add(0, row, values * part.to(values.dtype))


def empty_sums(algorithm: Algorithm, count: int) -> Tensor:
    """Zeros for the sums over `count` sequences, float64.

    The first row is of log-ratios of the current to the proximal policy. With `needs.pairs` two more follow: of
    log-probabilities, and of those under the reference; with `needs.labels` a fourth counts tokens. Elsewhere one of
    the loss's own terms (`Algorithm.summand`), where it has any, and with corrections over sequences as the last one
    log-ratios of the proximal policy to the one that sampled.
    """
    own = algorithm.summand is not None
    rows = 1 + own + algorithm.config.correction.over_sequences
    if algorithm.needs.pairs or algorithm.needs.labels:
        rows = 3 + algorithm.needs.labels
    return torch.zeros(rows, count, dtype=torch.float64)


def sums_change(algorithm: Algorithm) -> bool:
    """Return whether sums change with an update: those of the proximal to the sampling policy stay."""
    return algorithm.needs.sequence is not None or algorithm.config.correction.mask_negative is not None


def known_sums(algorithm: Algorithm, forests: Sequence[Rows], version: int) -> bool:
    """Return whether all sums are 0 before a batch's first update.

    Log-ratios of the current to the proximal policy are, where no token is of an older version or all are recomputed.
    """
    correction = algorithm.config.correction

    def current(rows: Rows) -> bool:
        stale = is_stale(rows.version, version)
        return rows.old_logp is None and (correction.proximal == "recomputed" or not bool(stale.any()))

    needs = algorithm.needs
    return not needs.pairs and not needs.labels and not correction.over_sequences and all(map(current, forests))


def hold_sequences(rows: Rows) -> bool:
    """Return whether a forest's rows have every token of each sequence that they touch, and of its pair's other one."""
    pairs = rows.sequences
    if pairs is None:
        return not len(rows)
    count = torch.bincount(pairs.sequence, minlength=len(pairs.length))
    touched = count > 0
    if pairs.partner is not None:
        touched |= touched[pairs.partner]
    if pairs.turn is not None and pairs.turn_share is not None:
        turns = torch.zeros(len(count), dtype=torch.float64, device=count.device)
        turns.index_add_(0, pairs.turn, pairs.turn_share)
        count = count + turns.round().to(count)
        touched |= turns > 0
    return bool((count[touched] == pairs.length[touched]).all())


def add_sums(algorithm: Algorithm, sums: Tensor, logp: Tensor, rows: Rows, version: int) -> None:
    """Add a forest's part to the sums of the sequences that its rows belong to; nothing, where it has no rows."""
    if not len(rows):  # of a forest that only keeps a rank busy, which knows no sequences
        return
    pairs, correction = rows.require_sequences(), algorithm.config.correction
    row, sequence = pairs.token.to(sums.device), pairs.sequence.to(sums.device)
    logp = logp.detach()
    old = old_policy(logp, rows, version, correction.proximal)
    parts = [(logp - old).to(sums)[row]]
    if algorithm.needs.pairs or algorithm.needs.labels:
        ref_logp = torch.zeros_like(logp) if rows.ref_logp is None else rows.ref_logp
        parts += [logp.to(sums)[row], ref_logp.to(sums)[row]]
        parts += [torch.ones_like(parts[0])] if algorithm.needs.labels else []
    elif algorithm.summand is not None:
        parts += [algorithm.summand(parts[0], pairs.mean_advantage.to(sums)[sequence])]
    if correction.over_sequences:
        parts += [(old - rows.behaviour_logp).to(sums)[row]]
    for total, each in zip(sums, parts, strict=True):
        total.index_add_(0, sequence, each)
        if pairs.turn is not None and pairs.turn_share is not None:
            total.index_add_(0, pairs.turn.to(sums.device), each * pairs.turn_share.to(sums.device))


class Meter:
    """Gathers a step's metrics over its forests; means are over trained tokens, and plain.

    Those of pairs and labels (`Tokens.weighted`) are means over these, by their weights.
    """

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.weighted: dict[str, float] = {}
        self.tokens = 0
        self.weight = 0.0
        self.compared = {"mismatch": 0, "staleness": 0}
        self.greatest = {"mismatch": 0.0, "staleness": 0.0}

    @torch.no_grad()
    def add(self, tokens: Tokens, rows: Rows, *, engine: bool, first: bool, scores: bool = False) -> None:
        """Count one forest's tokens.

        Args:
            tokens: from `objective`.
            rows: the forest's.
            engine: whether an engine sampled the tokens, so that ratios mean something.
            first: no update has been made since the batch began.
            scores: a score model is trained, and log-probabilities are of no token.
        """
        for name, measured in tokens.weighted.items():
            self.weighted[name] = self.weighted.get(name, 0.0) + float((rows.weight * measured).sum())
        if tokens.judged is not None:
            self.weight += float((rows.weight * tokens.judged).sum())
            trained = tokens.judged > 0
            tokens, rows = tokens.take(trained), rows.take(trained)
        elif tokens.weighted:
            self.weight += float(rows.weight.sum())
        self.tokens += len(rows)
        if scores:
            return
        self._sum("policy/entropy", tokens.entropy)
        self._sum("policy/logp", tokens.logp)
        if not engine:
            return
        for name, measured in tokens.metrics.items():
            self._sum(name, measured)
        r = tokens.ratio
        self._sum("policy/approx_kl", r - 1 - torch.log(r))
        both = rows.advantage if rows.advantage_minus is None else rows.advantage + rows.advantage_minus
        self._sum("policy/advantage", both)
        if rows.ref_logp is not None:
            self._sum("policy/kl_reference", k3(tokens.logp, rows.ref_logp))
        if first:
            self.compare(tokens.logp, rows, tokens.trained_version)

    @torch.no_grad()
    def add_values(self, values: Tensor, rows: Rows, clip: float | None) -> None:
        """Count a critic's values of one forest's rows; they have a meter of their own."""
        self.tokens += len(rows)
        self._sum("critic/loss", value_error(values, rows, clip))
        if clip is not None and rows.value is not None:
            self._sum("critic/clip_fraction", ((values - rows.value).abs() > clip).float())

    @torch.no_grad()
    def compare(self, logp: Tensor, rows: Rows, version: int) -> None:
        """Count how far the trainer's log-probabilities, before any update, are from the engine's.

        They are `mismatch` of tokens of the trainer's own version, whose difference is numerical alone, and `staleness`
        of older ones, whose difference is the policy's change besides.
        """
        stale = is_stale(rows.version, version)
        self._compare("mismatch", logp, rows, ~stale & (rows.version >= 0))
        self._compare("staleness", logp, rows, stale)

    def _compare(self, name: str, logp: Tensor, rows: Rows, which: Tensor) -> None:
        difference = (logp - rows.behaviour_logp)[which]
        distance = difference.abs()
        self._sum(f"{name}/abs_mean", distance)
        exact = difference.double()
        self._sum(f"{name}/kl", torch.expm1(exact) - exact)  # k3 of KL(sampling policy || trainer's)
        self.compared[name] += int(distance.numel())
        if distance.numel():
            self.greatest[name] = max(self.greatest[name], float(distance.max()))

    def _sum(self, name: str, values: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(values.sum())

    def join(self, other: Meter) -> None:
        """Count what another meter has counted as well."""
        self.tokens += other.tokens
        self.weight += other.weight
        for name, value in other.weighted.items():
            self.weighted[name] = self.weighted.get(name, 0.0) + value
        for name in self.compared:
            self.compared[name] += other.compared[name]
            self.greatest[name] = max(self.greatest[name], other.greatest[name])
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def metrics(self) -> dict[str, float]:
        """Means per trained token; those of mismatch and staleness per token that was compared."""
        means = {
            name: value / max(self.compared.get(name.partition("/")[0], self.tokens), 1)
            for name, value in self.sums.items()
        }
        means |= {name: value / self.weight for name, value in self.weighted.items() if self.weight}
        for name, count in self.compared.items():
            if f"{name}/abs_mean" in means:
                means[f"{name}/abs_max"] = self.greatest[name]
                means[f"{name}/share"] = count / max(sum(self.compared.values()), 1)
        if "correction/weight" in means:
            square = means.pop("correction/weight_square")
            means["correction/effective_sample_size"] = means["correction/weight"] ** 2 / square if square else 0.0
        return means
