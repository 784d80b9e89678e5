"""Mixtures of experts: settings, load balancing, replay of routed experts, load metrics.

The routing depends on the last bits of the router's logits. So a token that the engine routed to experts 3 and 7 may be
routed to 3 and 5 here, with another log-probability. `replay` prevents that: the experts recorded at rollout
(`Forest.routed_experts`), or at a step's first pass, are used in training; probabilities are the current router's
own, so it is trained as usual ("Routing replay": arXiv 2507.18071; recorded at rollout: arXiv 2510.11370).

The recorded experts are kept on their micro-batch. A recomputed forward finds its micro-batch by order: schedules run
the backward passes in the order of the forward passes, and under recomputation the first forward is the one without
gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from agentrl.errors import ConfigError, InvalidInput
from agentrl.train.trainers.megatron.micro import Micro
from agentrl.train.trainers.megatron.settings import MoeConfig


def moe_settings(moe: MoeConfig, known: dict[str, Any]) -> dict[str, Any]:
    """Fields of Megatron's configuration."""
    if moe.bias_rate and not known.get("moe_router_enable_expert_bias"):
        raise ConfigError(f"trainer.moe.bias_rate={moe.bias_rate:g}: the model's routers have no selection bias")
    settings: dict[str, Any] = {
        "moe_token_dispatcher_type": moe.dispatcher,
        "moe_router_dtype": "fp32",
        "moe_router_bias_update_rate": moe.bias_rate,
    }
    if moe.aux_loss:
        settings |= {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": moe.aux_loss}
    if moe.z_loss:
        settings["moe_z_loss_coeff"] = moe.z_loss
    if moe.capacity is not None:
        settings |= {"moe_expert_capacity_factor": moe.capacity, "moe_token_drop_policy": moe.drop}
    return settings


class Routers:
    """A rank's routers."""

    def __init__(self, models: Sequence[Any], moe: MoeConfig, *, recompute: bool = False) -> None:
        self.moe = moe
        self.of = {id(model): [TrackedRouter(r, recompute) for r in routers(model)] for model in models}
        for tracked in (each for group in self.of.values() for each in group):
            if moe.routing_replay != "off":
                tracked.router.router_replay = tracked

    @property
    def all(self) -> list[TrackedRouter]:
        """All routers of this rank."""
        return [each for group in self.of.values() for each in group]

    def before(self, micro: Micro, model: Any) -> None:
        """Set the micro-batch that a chunk's routers compute next."""
        for tracked in self.of[id(model)]:
            tracked.now = micro

    def counts(self) -> dict[str, Any]:
        """Return the routers' counts since the last call, to be added up over ranks."""
        tracker = moe_utils.get_moe_layer_wise_logging_tracker()
        losses = {name: float(entry["values"].sum()) for name, entry in tracker.items() if "values" in entry}
        moe_utils.clear_aux_losses_tracker()
        loads = {each.router.layer_number: each.take() for each in self.all}
        return {"loads": loads, "losses": losses, "topk": self.all[0].router.topk if self.all else 0}


def routers(model: Any) -> list[TopKRouter]:
    """A chunk's routers, in order."""
    return [module for module in model.modules() if isinstance(module, TopKRouter)]


class TrackedRouter:
    """A router whose choices are counted, and replayed where they were recorded."""

    def __init__(self, router: TopKRouter, recompute: bool) -> None:
        self.router, self.recompute = router, recompute
        self.now: Micro | None = None
        self._again: deque[Micro | None] = deque()
        self._loads = torch.zeros(router.config.num_moe_experts)
        self._tokens = 0
        router.register_forward_hook(self._count)
        router._apply_expert_bias = self._apply_expert_bias

    def get_replay_topk(
        self, scores: Tensor, topk: int, groups: int | None, group_topk: int | None, compute: Callable[..., Any]
    ) -> tuple[Tensor, Tensor]:
        """Called by Megatron's router: scores and indices [N, topk] of the chosen experts."""
        micro = self._micro()
        recorded = micro.routed_experts.get(self.router.layer_number) if micro is not None else None
        if recorded is None:
            values, indices = compute(scores, topk, num_groups=groups, group_topk=group_topk)
            if micro is not None:
                micro.routed_experts[self.router.layer_number] = indices
            return values, indices
        if recorded.shape != (len(scores), topk):
            raise InvalidInput(
                f"{recorded.shape[1]} experts were recorded for each token; the model's routers choose {topk}"
            )
        recorded = recorded.to(scores.device)  # a forest's are in the CPU's memory
        if bool((recorded < 0).any()):
            _, own = compute(scores, topk, num_groups=groups, group_topk=group_topk)
            recorded = torch.where(recorded < 0, own, recorded)
        return scores.gather(1, recorded), recorded

    def _micro(self) -> Micro | None:
        if not (self.recompute and self.router.training):
            return self.now
        if torch.is_grad_enabled():
            return self._again.popleft()
        self._again.append(self.now)
        return self.now

    def _count(self, router: Any, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        first = torch.is_grad_enabled() != self.recompute
        if router.training and first:
            routed = output[1].detach()
            padding = args[1] if len(args) > 1 else None
            if padding is not None:
                routed = routed & ~padding.reshape(-1, 1)
            self._loads += routed.sum(0).float().cpu()
            self._tokens += routed.shape[0] - (int(padding.sum()) if padding is not None else 0)

    def _apply_expert_bias(self, routed: Tensor, padding_mask: Tensor | None = None) -> None:
        """Megatron's own does not broadcast the mask's one column over the map's."""
        if self.router.enable_expert_bias and torch.is_grad_enabled():
            if padding_mask is not None:
                routed = routed & ~padding_mask.reshape(-1, 1)
            self.router.local_tokens_per_expert += routed.detach().sum(0)

    def take(self) -> tuple[Tensor, int]:
        """Tokens by expert, and tokens; counting starts anew."""
        counted = self._loads, self._tokens
        self._loads, self._tokens = torch.zeros_like(self._loads), 0
        return counted


def recorded_experts(experts: Tensor, micro_tokens: Tensor, layers: Sequence[int], sequence: bool) -> dict[int, Tensor]:
    """A forest's routed experts, by the number of the layer whose router on this rank replays them.

    Args:
        experts: [T, layers, topk], -1 where none were recorded; a layer counts among those with experts.
        micro_tokens: [L] the tokens that this rank holds; beyond T is padding.
        layers: the numbers of the layers with experts, in order.
        sequence: tensor ranks hold a part of these tokens each.

    Raises:
        InvalidInput: they were recorded with another number of layers than the model has.
    """
    if experts.shape[1] != len(layers):
        raise InvalidInput(
            f"routed experts were recorded of {experts.shape[1]} layers; the trainer's model has {len(layers)}"
        )
    filled = torch.cat((experts, experts.new_full((1, *experts.shape[1:]), -1)))
    held = filled[micro_tokens.clamp(max=len(experts))].long()
    if sequence:
        ranks = parallel_state.get_tensor_model_parallel_world_size()
        held = held.chunk(ranks)[parallel_state.get_tensor_model_parallel_rank()]
    return {layer: held[:, i] for i, layer in enumerate(layers)}


def metrics(counted: Sequence[dict[str, Any]], micros: int, copies: int, sharing: int) -> dict[str, float]:
    """A step's metrics from what all ranks counted.

    Args:
        counted: each rank's counts.
        micros: micro-batches on each rank, all epochs together.
        copies: data-parallel ranks.
        sharing: ranks that share a micro-batch's tokens.
    """
    layers: dict[int, list[tuple[Tensor, int]]] = {}
    losses: dict[str, float] = {}
    for rank in counted:
        for layer, load in rank["loads"].items():
            layers.setdefault(layer, []).append(load)
        for name, value in rank["losses"].items():
            losses[name] = losses.get(name, 0.0) + value
    if not layers or not micros:
        return {}
    topk = max(rank["topk"] for rank in counted)
    loads = torch.stack([sum((load for load, _ in each), torch.zeros(())) for each in layers.values()])
    tokens = sum(count for each in layers.values() for _, count in each)
    share = loads / loads.mean(1, keepdim=True).clamp(min=1e-9)
    found = {
        "moe/load_max": float(share.amax(1).mean()),
        "moe/load_min": float(share.amin(1).mean()),
        "moe/dropped": 1 - float(loads.sum()) / max(1, tokens * topk),
    }
    runs = copies * micros * len(layers)
    if "load_balancing_loss" in losses:
        found["moe/aux_loss"] = losses["load_balancing_loss"] / runs
    if "z_loss" in losses:
        found["moe/z_loss"] = losses["z_loss"] / (runs * sharing)
    return found
