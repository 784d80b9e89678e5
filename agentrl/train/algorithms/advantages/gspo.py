"""Group sequence policy optimisation (Zheng et al., arXiv:2507.18071): GRPO's advantages, the ratio of a sequence."""

from __future__ import annotations

from typing import Annotated

from pydantic import SerializeAsAny

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig
from agentrl.train.algorithms.policy_losses import VALIDATED, LossConfig, preset


class GspoConfig(GrpoConfig):
    """Settings of `gspo`."""

    loss: Annotated[SerializeAsAny[LossConfig], preset("gspo"), VALIDATED] = LossConfig(name="gspo")


class Gspo(Grpo):
    """The GSPO algorithm."""

    name = "gspo"
    settings = GspoConfig
    about = About(
        "GSPO, arXiv:2507.18071",
        "as grpo; loss=gspo",
        "mixture-of-experts models, long sequences",
        "TRL: importance_sampling_level=sequence; verl: gspo",
    )
