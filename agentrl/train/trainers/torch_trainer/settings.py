"""The settings of `trainer=torch`."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from agentrl.train.trainers.parameter_settings import ParameterConfig


class TorchConfig(ParameterConfig):
    """The settings of `trainer=torch`."""

    name: str = "torch"
    """The trainer's name."""
    recompute: Literal["none", "full"] = "none"
    """Activations: keep them, or keep each layer's input and compute the rest again in the backward pass."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW; or Muon (momentum, orthogonalised by Newton-Schulz) for the matrices of hidden layers and AdamW for
    embeddings, heads, norms and experts' stacked matrices. Muon's updates are scaled to the size of AdamW's (Moonlight,
    arXiv:2502.16982), so one `algo.lr` and `algo.weight_decay` suit both."""
    proof: bool = True
    """Before training, test on a small model of the architecture that packed forests train like separate sequences."""

    @model_validator(mode="after")
    def _precision(self) -> TorchConfig:
        if self.dtype == "float16":
            raise ValueError("dtype=float16 would underflow without loss scaling; use bfloat16 or float32")
        return self
