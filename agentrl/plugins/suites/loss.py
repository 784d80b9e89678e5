"""The conformance suite of policy losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.plugins.suites.findings import configure, expect, find_problems, sampled_groups
from agentrl.rollout.engines.contract import ContractFinding
from agentrl.train.algorithms.advantages.kto import Kto
from agentrl.train.algorithms.advantages.preference import Dpo
from agentrl.train.algorithms.objective import add_sums, empty_sums
from agentrl.train.algorithms.policy_gradient import PolicyGradient
from agentrl.train.algorithms.policy_losses import LOSSES, PolicyLoss
from agentrl.train.algorithms.returns import by_turn, credit_of
from agentrl.train.algorithms.tokens import Tokens
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack_credited

TOLERANCE = 1e-4
"""By how much a value may differ from what it should be, relative to the largest one."""


class _Centred(PolicyGradient):
    """Rewards less their group's mean: the advantages that the loss is given."""

    def credit(self, groups: Any, values: Any = None) -> Any:
        return credit_of(groups, self.config, lambda sessions: by_turn(sessions, "mean"))


ALGORITHMS_BY_COMPARED: dict[str | None, type[PolicyGradient]] = {None: _Centred, "pairs": Dpo, "labels": Kto}
"""The algorithms that give credit to losses, by `PolicyLoss.compares`."""


@dataclass
class _Subject:
    """A loss, and tokens that it is computed for."""

    loss: PolicyLoss
    algorithm: PolicyGradient
    forest: Forest

    def tokens(self, scale: float = 1.0) -> Tokens:
        """The forest's tokens; `scale` is a factor of their advantages."""
        rows = self.forest.rows()
        noise = torch.Generator().manual_seed(1)
        logp = (rows.behaviour_logp + 0.3 * torch.randn(len(rows), generator=noise)).requires_grad_(True)
        rows.old_logp = rows.behaviour_logp.clone()
        rows.ref_logp = rows.behaviour_logp - 0.2 if self.loss.reference else None
        rows.advantage = rows.advantage * scale
        tokens = Tokens.of(logp, torch.full_like(logp, 1.5).detach(), rows, 0)
        if rows.sequences is None or self.loss.sequence is None:
            return tokens
        sums = empty_sums(self.algorithm, len(rows.sequences.length))
        add_sums(self.algorithm, sums, logp, rows, 0)
        return tokens.by_sequence(rows, sums, self.loss.summand)


def a_value_for_each_token(subject: _Subject) -> None:
    """A finite value for each entry of its tokens."""
    tokens = subject.tokens()
    value = subject.loss(tokens)
    expect(value.shape == tokens.logp.shape, f"its shape is {tuple(value.shape)}, not {tuple(tokens.logp.shape)}")
    expect(bool(torch.isfinite(value).all()), "a value is not finite")


def it_is_learned_from(subject: _Subject) -> None:
    """Its gradient in the log-probabilities is finite, and not 0 everywhere."""
    tokens = subject.tokens()
    logp = tokens.logp
    (slope,) = torch.autograd.grad(subject.loss(tokens).sum(), logp)
    expect(bool(torch.isfinite(slope).all()), "a gradient is not finite")
    expect(bool(slope.any()), "no log-probability has a gradient: nothing is learned")


def the_same_tokens_give_the_same_values(subject: _Subject) -> None:
    """Nothing is kept from one call to the next, and what it is given stays as it is."""
    tokens = subject.tokens()
    before = [tokens.advantage.clone(), tokens.old_logp.clone(), tokens.weight.clone()]
    first = subject.loss(tokens).detach()
    expect(torch.equal(first, subject.loss(subject.tokens()).detach()), "a second call gives other values")
    after = (tokens.advantage, tokens.old_logp, tokens.weight)
    expect(all(map(torch.equal, before, after)), "it changed advantages, old log-probabilities or weights in place")


def two_channels_of_advantages_add_up(subject: _Subject) -> None:
    """It is positively homogeneous in the advantage, or affine where it says so; losses over sequences need not be."""
    loss = subject.loss
    if loss.sequence is not None:
        return
    single, double = loss(subject.tokens()).detach(), loss(subject.tokens(2.0)).detach()
    if loss.affine:
        still = loss(subject.tokens(0.0)).detach()
        _same(double - still, 2 * (single - still), "it says that it is affine in the advantage, and is not")
    else:
        _same(double, 2 * single, "loss(2 · advantage) is not 2 · loss(advantage), and `affine` is false")


def _same(found: Tensor, expected: Tensor, message: str) -> None:
    worst = float((found - expected).abs().max())
    expect(worst <= TOLERANCE * max(float(expected.abs().max()), 1.0), f"{message}: {worst:.2g} away")


def metrics_are_of_tokens(subject: _Subject) -> None:
    """Its additions to `tokens.metrics` and `tokens.weighted` have an entry for each token."""
    tokens = subject.tokens()
    subject.loss(tokens)
    for name, value in (tokens.metrics | tokens.weighted).items():
        expect(value.shape == tokens.logp.shape, f"metric {name!r} has the shape {tuple(value.shape)}")
        expect(bool(torch.isfinite(value.float()).all()), f"metric {name!r} is not finite")


def its_settings_come_back_from_a_file(subject: _Subject) -> None:
    """Its settings are the same after they were written and read."""
    config = subject.loss.config
    expect(type(config).model_validate(config.model_dump()) == config, "its settings change when written and read")


CHECKS: tuple[Callable[[_Subject], None], ...] = (
    a_value_for_each_token,
    it_is_learned_from,
    the_same_tokens_give_the_same_values,
    two_channels_of_advantages_add_up,
    metrics_are_of_tokens,
    its_settings_come_back_from_a_file,
)


def check_loss(loss: str | type[PolicyLoss], **settings: Any) -> list[ContractFinding]:
    """Find promises that a policy loss does not keep.

    Args:
        loss: a name, an import path, `file.py:CLASS`, or the class.
        settings: its own, as `algo.loss.*`.

    Returns:
        What is wrong; nothing, where the loss keeps its contract.

    Raises:
        UnknownName: there is none of that name.
        ConfigError: it does not have these settings.
    """
    kind, config = configure(LOSSES, loss, settings)
    algorithm = ALGORITHMS_BY_COMPARED[kind.compares]()
    algorithm.policy_loss = made = kind(config)
    _, [forest] = pack_credited(algorithm, sampled_groups(), None, 1 << 16, 0)
    made.mark([forest])
    return find_problems(CHECKS, _Subject(made, algorithm, forest))
