"""verl's own functions on given tensors, in a process of their own: importing verl changes its process.

python compute.py FOLDER-OF-PACKAGES CASES.pt RESULTS.pt
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def loss(core: Any, actor: Any, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A policy loss and its gradient by the current log-probabilities."""
    logp = case["logp"].clone().requires_grad_()
    own = case["settings"].pop("policy_loss", {})
    config = actor(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **case["settings"])
    for name, value in own.items():
        object.__setattr__(config.policy_loss, name, value)
    function = core.get_policy_loss_fn(case["name"])
    value, _ = function(case["old"], logp, case["advantage"], case["mask"], case["mode"], config)
    (gradient,) = torch.autograd.grad(value, logp)
    return value.detach(), gradient


def kl(core: Any, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A KL estimate of each token, and its gradient."""
    logp = case["logp"].clone().requires_grad_()
    value = core.kl_penalty(logp, case["ref"], case["name"])
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    return value.detach(), gradient


def advantages(core: Any, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Advantages and returns of each token."""
    function = core.get_adv_estimator_fn(case["name"])
    more = dict(case["more"])
    if "config" in more:
        more["config"] = Config(**more["config"])
    found: tuple[Tensor, Tensor] = function(case["rewards"].clone(), response_mask=case["mask"], **more)
    return found


class Config(SimpleNamespace):
    """What verl reads by attribute, and by `get`."""

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return getattr(self, name, default)


def main(packages: str, cases: str, results: str) -> None:
    """Compute all cases."""
    sys.path.append(packages)
    os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"
    from verl.trainer.ppo import core_algos  # type: ignore[import-not-found]
    from verl.workers.config import ActorConfig  # type: ignore[import-not-found]

    kinds = {
        "loss": lambda case: loss(core_algos, ActorConfig, case),
        "kl": lambda case: kl(core_algos, case),
        "advantage": lambda case: advantages(core_algos, case),
    }
    torch.save([kinds[case["kind"]](case) for case in torch.load(cases, weights_only=False)], results)


if __name__ == "__main__":
    main(*sys.argv[1:])
