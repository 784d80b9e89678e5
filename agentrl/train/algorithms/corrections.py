"""Importance weights and masks for tokens that another policy sampled than the one that is trained.

Three policies matter to a token: the one that sampled it (behaviour), the one that a ratio in the loss is against
(proximal), and the one that is being updated (current). The loss corrects from proximal to current by its ratio; what
is here corrects from behaviour to proximal, by the ratio

    r_t = pi_proximal(t) / pi_behaviour(t)

and the products or geometric means of these over a turn or a session. They are constants: no gradient flows through
them, and no denominator depends on them, so that a masked token counts as one whose loss is 0.

| setting | source |
|---|---|
| `proximal`, `weight` | decoupled PPO: Hilton et al., arXiv:2110.00641; AReaL, arXiv:2505.24298 |
| `weight_max` | truncated importance sampling: Ionides 2008; Espeholt et al., arXiv:1802.01561; Yao et al. 2025 |
| `mask_session` | masked importance sampling: Liu et al. 2025 (sequence-level rejection) |
| `mask_token` | IcePop: Ling Team, arXiv:2510.18855 |
| `mask_negative` | off-policy sequence masking: DeepSeek-V3.2, arXiv:2512.02556 |

On a tree a token belongs to every path through it. Each (token, path) pair has the path's own weights and masks (see
`agentrl.train.algorithms.sequences`), and a turn's ratio is over all of the turn's trained tokens, whatever goes
through it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from agentrl.config import CorrectionConfig
from agentrl.errors import InvalidInput
from agentrl.train.algorithms.sequences import Sequences
from agentrl.train.algorithms.tokens import Tokens

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before they are exponentiated, as in verl: a product over a long session overflows."""

Level = Literal["token", "turn", "session"]


@torch.no_grad()
def importance(config: CorrectionConfig, tokens: Tokens, pairs: Sequences | None, sums: Tensor | None) -> Tensor:
    """Return the factor of each entry's loss; its shares and means go to the tokens' metrics.

    Args:
        config: the corrections.
        tokens: a forest's, one entry each, or one for each (token, sequence) pair.
        pairs: the pairs that the entries are, where they are.
        sums: of the batch's sequences over all forests and ranks; see `agentrl.train.algorithms.objective.empty_sums`.

    Returns:
        [P] or [Q] as the entries, without a gradient; 0 where an entry is masked.
    """
    ratios = _Ratios(tokens, pairs, sums)
    weight = torch.ones_like(tokens.logp)
    metrics = tokens.metrics
    if config.weight != "none":
        raw = ratios.of(config.weight, mean=config.weight_mean)
        weight = raw.clamp(min=config.weight_min, max=config.weight_max)
        metrics["correction/clip_fraction"] = (raw != weight).float()
    keep = torch.ones_like(weight, dtype=torch.bool)
    for name, inside in _masks(config, ratios).items():
        metrics[f"correction/{name}"] = (~inside).float()
        keep &= inside
    metrics["correction/mask_fraction"] = (~keep).float()
    weight = (weight * keep).to(tokens.logp.dtype)
    metrics |= {"correction/weight": weight, "correction/weight_square": weight.double().square()}
    return weight


def _masks(config: CorrectionConfig, ratios: _Ratios) -> dict[str, Tensor]:
    """The entries that each mask keeps, by its setting."""
    found: dict[str, Tensor] = {}
    levels: tuple[Level, ...] = ("token", "turn", "session")
    for level in levels:
        bounds = getattr(config, f"mask_{level}")
        if bounds is not None:
            ratio = ratios.of(level, mean=config.mask_mean)
            found[f"mask_{level}"] = (ratio >= bounds[0]) & (ratio <= bounds[1])
    if config.mask_negative is not None:
        far = ratios.away_from_current() > config.mask_negative
        found["mask_negative"] = ~(far & (ratios.tokens.advantage < 0))
    return found


class _Ratios:
    """Ratios of the proximal to the sampling policy at each entry, over its token, turn or session."""

    def __init__(self, tokens: Tokens, pairs: Sequences | None, sums: Tensor | None) -> None:
        self.tokens, self.pairs, self.sums = tokens, pairs, sums

    def of(self, level: Level, *, mean: bool) -> Tensor:
        """The product over the entry's `level`, or the geometric mean."""
        if level == "token":
            logs = self.tokens.old_logp - self.tokens.behaviour_logp
        else:
            pairs, sums, index = self._of_sequences(level)
            logs = sums[-1, index]
            if mean:
                logs = logs / pairs.length[index]
        return logs.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()

    def away_from_current(self) -> Tensor:
        """The mean over a session's tokens of log(pi_behaviour / pi_current)."""
        pairs, sums, index = self._of_sequences("session")
        return -(sums[0, index] + sums[-1, index]) / pairs.length[index]

    def _of_sequences(self, level: Level) -> tuple[Sequences, Tensor, Tensor]:
        if self.pairs is None or self.sums is None:
            raise InvalidInput("algo.correction is over turns or sessions, of which the batch has no sums")
        turn = self.pairs.sequence if self.pairs.turn is None else self.pairs.turn
        return self.pairs, self.sums, turn if level == "turn" else self.pairs.sequence
