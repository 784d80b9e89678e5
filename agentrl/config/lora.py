"""The settings of an adapter that is trained in the whole model's place."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from agentrl.config.sections import PathText, Section

INSTALL_QUANTISER = "pip install bitsandbytes"
"""The command that installs what `quantize` computes with."""


class LoraConfig(Section):
    """A low-rank adapter (LoRA, arXiv:2106.09685): each chosen linear layer computes x W' + scale · (x A') B'."""

    rank: int = Field(default=0, ge=0)
    """The adapter's rank. 0: the whole model is trained, unless `adapter` names one."""
    alpha: PositiveFloat = 32.0
    """The adapter's scale is alpha/rank; with `rslora`, alpha over the root of the rank."""
    rslora: bool = False
    """Scale by the root of the rank (arXiv:2312.03732)."""
    targets: tuple[str, ...] = ()
    """Patterns (`*` matches anything) of linear layers' Hugging Face names: `*.q_proj`. None: all but the output
    layer."""
    experts: bool = False
    """Also the experts that a layer holds as one tensor, each with matrices of its own."""
    full: tuple[str, ...] = ()
    """Patterns of modules' names that are trained in full beside the adapter, such as embeddings and the output layer
    (`[*.embed_tokens,lm_head]`), at a tenth of its learning rate."""
    init: Literal["default", "gaussian"] = "default"
    """The initial A, as PEFT's `init_lora_weights`: uniform, as linear layers do, or normal with deviation 1/rank. B
    begins at 0, so that the policy begins as the base."""
    dropout: float = 0.0
    """Only 0: dropout makes the trainer's log-probabilities differ from the engine's."""
    tenants: Literal["separate", "mixed"] = "separate"
    """The passes of several policies that learn on one base: each in passes of its own, with the bits of a run of its
    own; or in passes over trees of several adapters, equal up to rounding."""
    quantize: Literal["none", "nf4"] = "none"
    """The frozen linear layers in four bits (`trainer=torch`, with bitsandbytes): their values become those that four
    bits hold, for engines and exports as for the trainer."""
    adapter: PathText | None = None
    """A folder in PEFT's format that training begins with, on `model`; rank, scale and layers are the folder's."""

    @property
    def active(self) -> bool:
        """True if an adapter is trained."""
        return self.rank > 0 or self.adapter is not None

    @field_validator("init", mode="before")
    @classmethod
    def _keeps_the_base(cls, value: object) -> object:
        if isinstance(value, str) and value.split("_niter")[0] in _REWRITES:
            raise ValueError(f"init={value} rewrites the base's weights, which engines share; use default or gaussian")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> LoraConfig:
        if self.dropout:
            raise ValueError(
                f"dropout={self.dropout:g} breaks the ratio of trainer and engine: what was sampled without dropout "
                "would be scored with it; use dropout=0"
            )
        fields = type(self).model_fields
        given = [name for name in _OF_A_FOLDER if getattr(self, name) != fields[name].default]
        if not self.active and self.quantize != "none":
            raise ValueError(f"quantize={self.quantize} is of the base under an adapter: give lora.rank as well")
        if self.adapter is not None and given:
            raise ValueError(f"{given[0]} is the folder's (lora.adapter={self.adapter}): leave it out")
        if not self.active and given:
            raise ValueError(f"{given[0]} has no effect without an adapter: give lora.rank as well, or leave it out")
        return self


_REWRITES = frozenset(("pissa", "olora", "corda", "loftq", "eva", "orthogonal", "lora_ga"))
_OF_A_FOLDER = ("rank", "alpha", "rslora", "targets", "experts", "full", "init")
