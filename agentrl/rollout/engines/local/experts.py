"""The experts of a flat step's tokens, noted where the step's keys and values are kept.

transformers passes the chosen experts to each mixture of experts as an argument (`top_k_index`), whatever its router
is; a hook in front of it writes them into the arena's row, at the token's position. So they travel with keys and
values: a prefix that is copied brings the experts that it was computed with.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from agentrl.attachments import routed_experts
from agentrl.rollout.engines.local.flat import StepLayout

_CHOSEN = "top_k_index"


class ExpertRecorder:
    """Notes the experts of every token that a model computes.

    Args:
        model: a transformers model; its mixtures of experts are found by what they take.

    Attributes:
        layers: how many of its layers have experts.
        experts: how many each of them has.
        topk: how many a token goes to.
        layout: the present step's; the runner sets it.
    """

    def __init__(self, model: Any) -> None:
        found = [module for module in model.modules() if _CHOSEN in inspect.signature(type(module).forward).parameters]
        config = model.config.get_text_config()
        self.layers, self.topk = len(found), int(getattr(config, "num_experts_per_tok", None) or 0)
        self.experts = max((int(module.num_experts) for module in found), default=0)
        self.layout: StepLayout | None = None
        for layer, module in enumerate(found):
            module.register_forward_pre_hook(self._hook(layer, module), with_kwargs=True)

    def _hook(self, layer: int, module: Any) -> Any:
        place = list(inspect.signature(type(module).forward).parameters).index(_CHOSEN) - 1

        def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            at = self.layout
            if at is not None and at.arena.routed_experts is not None:
                chosen_Nk: Tensor = kwargs[_CHOSEN] if _CHOSEN in kwargs else args[place]
                at.arena.routed_experts[at.write_row_N, at.position_N, layer] = chosen_Nk.to(torch.int16)

        return note

    def recorded(self, row_TLk: Tensor, start: int, computed: int, end: int) -> bytes:
        """The routed experts of a row's tokens from `start` to `end`; what is not computed yet is unknown."""
        rows_TLk = row_TLk[start:end].clone()
        rows_TLk[max(0, computed - start) :] = -1
        return routed_experts.pack(rows_TLk.cpu().numpy(), self.experts)
