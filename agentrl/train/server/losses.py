"""The losses that a request names. Each is a sum over a datum's targets, and a request's gradient is that of their sum.

With r = exp(logp - logprobs), the ratio to what drew the token, and A its advantage:

    cross_entropy         -weights · logp
    importance_sampling   -r A
    ppo                   -min(r A, clip(r) A)                      (arXiv:1707.06347)
    cispo                 -sg(clip(r)) A logp                       (arXiv:2506.13585)
    dro                   -A logp + ½ beta (logp - logprobs)²       (arXiv:2405.19107)

clip(r) is between `clip_low_threshold` and `clip_high_threshold`, 0.8 and 1.2 unless a request sets them; beta is 0.05.
They are the public service's formulas, and no policy loss of ours: a request brings its own normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from agentrl.errors import InvalidInput, nearest

Inputs = Mapping[str, Tensor]
Settings = Mapping[str, float | str]
TARGETS = "target_tokens"


@dataclass(frozen=True, slots=True)
class WireLoss:
    """A loss.

    Attributes:
        compute: the loss of each target, from its log-probability, its inputs and the settings.
        inputs: the names of the inputs besides the targets.
        settings: the settings with their defaults.
        wide: a position may have several targets.
    """

    compute: Callable[[Tensor, Inputs, Mapping[str, float]], Tensor]
    inputs: tuple[str, ...]
    settings: Mapping[str, float]
    wide: bool = False

    def read_settings(self, given: Settings) -> dict[str, float]:
        """Return the settings, those that are given among them."""
        for name, value in given.items():
            if name not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise InvalidInput(f"loss_fn_config: {name!r} is not known; this loss has {known}")
            if isinstance(value, str):
                raise InvalidInput(f"loss_fn_config: {name}={value!r} is no number")
        return {**self.settings, **given}  # type: ignore[dict-item]


def _cross_entropy(logp: Tensor, inputs: Inputs, _: Mapping[str, float]) -> Tensor:
    return -logp * inputs["weights"]


def _ratio(logp: Tensor, inputs: Inputs) -> Tensor:
    return (logp - inputs["logprobs"]).exp()


def _importance_sampling(logp: Tensor, inputs: Inputs, _: Mapping[str, float]) -> Tensor:
    return -_ratio(logp, inputs) * inputs["advantages"]


def _ppo(logp: Tensor, inputs: Inputs, settings: Mapping[str, float]) -> Tensor:
    ratio, advantage = _ratio(logp, inputs), inputs["advantages"]
    clipped = ratio.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])
    return -(ratio * advantage).minimum(clipped * advantage)


def _cispo(logp: Tensor, inputs: Inputs, settings: Mapping[str, float]) -> Tensor:
    clipped = _ratio(logp, inputs).clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])
    return -clipped.detach() * inputs["advantages"] * logp


def _dro(logp: Tensor, inputs: Inputs, settings: Mapping[str, float]) -> Tensor:
    return settings["beta"] / 2 * (logp - inputs["logprobs"]).square() - inputs["advantages"] * logp


_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_DRAWN = ("logprobs", "advantages")
WIRE_LOSSES: Mapping[str, WireLoss] = {
    "cross_entropy": WireLoss(_cross_entropy, ("weights",), {}, wide=True),
    "importance_sampling": WireLoss(_importance_sampling, _DRAWN, {}),
    "ppo": WireLoss(_ppo, _DRAWN, _CLIP),
    "cispo": WireLoss(_cispo, _DRAWN, _CLIP),
    "dro": WireLoss(_dro, _DRAWN, {"beta": 0.05}),
}


def find_loss(name: str) -> WireLoss:
    """Return a loss by its name."""
    if name not in WIRE_LOSSES:
        guess = nearest(name, WIRE_LOSSES)
        hint = f"; nearest: {guess}" if guess else ""
        raise InvalidInput(
            f"loss_fn={name!r} is not computed here; there are {', '.join(WIRE_LOSSES)}{hint}. Any other loss of "
            "log-probabilities: forward_backward_custom"
        )
    return WIRE_LOSSES[name]
