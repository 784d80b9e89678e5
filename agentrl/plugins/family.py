"""A model family of `trainer=megatron` as a plug-in: which tensors of a model's files Megatron's parameters are.

It is a `Family`, a table in one file; docs/families.md says what stands in it. There is no suite of its own: each model
of the family is compared with transformers before it is trained, and by `agentrl models check PATH --family
file.py:NAME`.

- Named by `trainer.family=file.py:NAME`, `register`, or an entry point in the group `agentrl.families`.
"""

from typing import TYPE_CHECKING

from agentrl.plugins.later import import_later

if TYPE_CHECKING:
    from agentrl.train.trainers.megatron.models.family import (
        FAMILIES,
        Family,
        register,
        require,
        window_by_kind,
        window_everywhere,
    )
    from agentrl.train.trainers.megatron.models.rotary import Rotary
    from agentrl.train.trainers.megatron.models.tables import (
        ATTENTION,
        EXPERT,
        EXPERTS,
        FOUR_NORMS,
        JOINT_ATTENTION,
        JOINT_MLP,
        LATENT,
        LAYER,
        MLP,
        NORMS,
        OUTSIDE,
        POST_NORMS,
        SHARED_EXPERT,
        SHARED_EXPERTS,
        WIDE_NORMS,
    )
else:
    __getattr__ = import_later(
        __name__,
        "agentrl.train.trainers.megatron.models.family",
        "agentrl.train.trainers.megatron.models.rotary",
        "agentrl.train.trainers.megatron.models.tables",
    )

__all__ = [
    "ATTENTION",
    "EXPERT",
    "EXPERTS",
    "FAMILIES",
    "FOUR_NORMS",
    "JOINT_ATTENTION",
    "JOINT_MLP",
    "LATENT",
    "LAYER",
    "MLP",
    "NORMS",
    "OUTSIDE",
    "POST_NORMS",
    "SHARED_EXPERT",
    "SHARED_EXPERTS",
    "WIDE_NORMS",
    "Family",
    "Rotary",
    "register",
    "require",
    "window_by_kind",
    "window_everywhere",
]
