"""Policy losses by name or import path: what `algo.loss` names."""

from __future__ import annotations

from agentrl.registry import Registry, subclass_of
from agentrl.train.algorithms.policy_losses.base import VALIDATED, LossConfig, LossSection, PolicyLoss, preset

_HERE = "agentrl.train.algorithms.policy_losses"

LOSSES: Registry[type[PolicyLoss]] = Registry(
    "policy loss",
    "algo.loss",
    "agentrl.losses",
    {
        "cispo": f"{_HERE}.cispo:Cispo",
        "clip_cov": f"{_HERE}.covariance:ClipCov",
        "clipped": f"{_HERE}.clipped:Clipped",
        "cpo": f"{_HERE}.pairs:CpoLoss",
        "dpo": f"{_HERE}.pairs:DpoLoss",
        "dppo": f"{_HERE}.dppo:Dppo",
        "dro": f"{_HERE}.dro:Dro",
        "gmpo": f"{_HERE}.gmpo:Gmpo",
        "gspo": f"{_HERE}.gspo:GspoLoss",
        "gspo_token": f"{_HERE}.gspo:GspoToken",
        "importance_sampling": f"{_HERE}.importance_sampling:ImportanceSampling",
        "ipo": f"{_HERE}.pairs:IpoLoss",
        "kl_cov": f"{_HERE}.covariance:KlCov",
        "kto": f"{_HERE}.kto:KtoLoss",
        "orpo": f"{_HERE}.pairs:OrpoLoss",
        "robust": f"{_HERE}.pairs:RobustLoss",
        "sapo": f"{_HERE}.sapo:Sapo",
        "simpo": f"{_HERE}.pairs:SimpoLoss",
        "topr": f"{_HERE}.topr:Topr",
        "vespo": f"{_HERE}.vespo:Vespo",
    },
    settings=LossConfig,
    default=subclass_of(PolicyLoss),
)


def make_loss(config: LossConfig) -> PolicyLoss:
    """The loss that the settings name, with these settings; `Registry.find` describes the errors."""
    return LOSSES.find(config.name)(config)


__all__ = ["LOSSES", "VALIDATED", "LossConfig", "LossSection", "PolicyLoss", "make_loss", "preset"]
