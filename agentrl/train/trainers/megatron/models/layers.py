"""The modules that Megatron's local layer specification gets from us.

Norm            RMSNorm that works under sequence parallelism (the local one asserts that it is off)
WideNorm        the same over all heads of queries or keys together (OLMo)
SelfAttention   queries and keys rotated by each token's position before the core attention sees them
LatentAttention multi-head latent attention, likewise
ExpertDown      an expert's second matrix, where it has a bias (GPT-OSS)
PostNormLayer   a transformer layer that also norms what attention and MLP give back (GLM-4)
ScaledLayer     one that multiplies it (Granite)

A position reaches the attention in the `attention_mask` argument (see `rotary.positions`), which Megatron
saves and restores with each micro-batch; it is kept on the module only while that module's forward runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.extensions import transformer_engine
from megatron.core.tensor_parallel.mappings import (
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer import attention, multi_latent_attention, transformer_layer
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn

from agentrl.errors import InvalidInput
from agentrl.train.trainers.megatron.copied import copied
from agentrl.train.trainers.megatron.models.rotary import Rotary

multi_latent_attention.HAVE_TE = transformer_engine.HAVE_TE  # it checks whether names are there, and stand-ins are


class Norm(nn.Module):
    """RMSNorm; its gradient is summed over tensor-parallel ranks where the sequence is spread over them.

    With `layernorm_zero_centered_gamma` its weight is what is added to one, in float32 (Gemma).
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        device = None if config.use_cpu_initialization else torch.cuda.current_device()
        self.eps, self.around_one = eps, config.layernorm_zero_centered_gamma
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, states: Tensor) -> Tensor:
        """[*, hidden_size] -> the same."""
        if self.around_one:
            return F.rms_norm(states.float(), (states.shape[-1],), 1 + self.weight.float(), self.eps).to(states)
        return F.rms_norm(states, (states.shape[-1],), self.weight, self.eps)


class WideNorm(Norm):
    """RMSNorm over all heads together, of which a tensor-parallel rank holds some.

    Raises:
        InvalidInput: there are fewer heads than ranks: those that share one would count it several times.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, *, heads: int, **_: Any) -> None:
        ranks = config.tensor_model_parallel_size
        if heads % ranks:
            raise InvalidInput(
                f"trainer.tensor_parallel={ranks} does not divide the {heads} heads that are normed together"
            )
        super().__init__(config, hidden_size * heads // ranks, eps)
        self.width = hidden_size * heads
        self.weight.sequence_parallel = False  # type: ignore[attr-defined]  # every rank has its own part
        tensor_parallel.set_tensor_model_parallel_attributes(self.weight, True, 0, 1)

    def forward(self, states: Tensor) -> Tensor:
        """[T, 1, heads, d] -> the same."""
        wide = states.float()
        squares = wide.square().sum((-2, -1), keepdim=True)
        # Both ways over ranks: every rank's heads depend on the sum, and so does every rank's gradient.
        squares = reduce_from_tensor_model_parallel_region(copied(squares))
        normed = wide * torch.rsqrt(squares / self.width + self.eps)
        return normed.to(states) * self.weight.view(states.shape[-2:])

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """Return the weights for Megatron's checkpoints."""
        group = parallel_state.get_tensor_model_parallel_group()
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"weight": 0},
            sharded_offsets,
            tp_group=group,
            dp_cp_group=metadata["dp_cp_group"],
        )


class LatentNorm(Norm):
    """The norm of a compressed query or key-value; transformers fixes its epsilon, whatever the model's own is."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(config, hidden_size, eps=1e-6)


class _ByPosition:
    """The rotation of an attention that is rotated by position, and the table while a pass is under way."""

    def __init__(self, *args: Any, rotary: Rotary | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rotary: Callable[[Tensor, Tensor | None], Tensor] = rotary or (lambda states, table: states)
        self._table: Tensor | None = None

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None, *args: Any, **kwargs: Any) -> Any:
        """Attend with the positions of the table in `attention_mask`."""
        self._table = attention_mask
        try:
            return super().forward(hidden_states, attention_mask, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._table = None


class SelfAttention(_ByPosition, attention.SelfAttention):  # type: ignore[misc]
    """Grouped-query attention, rotated by position."""

    def get_query_key_value_tensors(self, *args: Any, **kwargs: Any) -> Any:
        """Query [T, 1, heads, d], key and value [T, 1, groups, d] of this rank, the first two rotated."""
        query, key, value = super().get_query_key_value_tensors(*args, **kwargs)
        return self.rotary(query, self._table), self.rotary(key, self._table), value


class LatentAttention(_ByPosition, multi_latent_attention.MLASelfAttention):  # type: ignore[misc]
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), rotated by position.

    Megatron's own rotates by place in the row within one long method, and leaves the gradient of the shared
    rotary key to the ranks' own heads unless the sequence is spread over them; this one sums it always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.rotary_pos_emb

    def get_query_key_value_tensors(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Any, ...]:
        """Query and key [T, 1, heads, d], value [T, 1, heads, v] of this rank, and the compressed two."""
        config, table = self.config, self._table
        compressed_query = self._compressed_query(hidden_states)
        joint = _gathered(self.linear_kv_down_proj(hidden_states)[0], config.kv_lora_rank + config.qk_pos_emb_head_dim)
        compressed, shared = torch.split(joint, [config.kv_lora_rank, config.qk_pos_emb_head_dim], -1)
        if config.sequence_parallel:
            compressed = scatter_to_sequence_parallel_region(compressed)
        compressed = self.kv_layernorm(compressed)

        up = self.linear_q_proj if config.q_lora_rank is None else self.linear_q_up_proj
        query = up(compressed_query)[0].unflatten(-1, (-1, self.q_head_dim))
        still, turned = torch.split(query, [config.qk_head_dim, config.qk_pos_emb_head_dim], -1)
        query = torch.cat((still, self.rotary(turned, table)), -1)

        joint = self.linear_kv_up_proj(compressed)[0].unflatten(-1, (-1, config.qk_head_dim + config.v_head_dim))
        still, value = torch.split(joint, [config.qk_head_dim, config.v_head_dim], -1)
        shared = copied(self.rotary(shared[:, :, None], table))
        key = torch.cat((still, shared.expand(*still.shape[:-1], -1)), -1)
        return query, key, value, compressed_query, compressed

    def _compressed_query(self, hidden_states: Tensor) -> Tensor:
        if self.config.q_lora_rank is None:
            return hidden_states
        compressed = _gathered(self.linear_q_down_proj(hidden_states)[0], self.config.q_lora_rank)
        if self.config.sequence_parallel:
            compressed = scatter_to_sequence_parallel_region(compressed)
        normed: Tensor = self.q_layernorm(compressed)
        return normed


def _gathered(states: Tensor, width: int) -> Tensor:
    """The whole last dimension, where tensor-parallel ranks hold a part of it each."""
    if states.shape[-1] == width:
        return states
    whole: Tensor = gather_from_tensor_model_parallel_region(states)
    return whole


class ExpertDown(tensor_parallel.RowParallelLinear):  # type: ignore[misc]
    """An expert's second matrix, to whose outputs Megatron adds a bias in place, which views don't bear.

    With the sequence shared, Megatron would also sum the biases' gradients over tensor-parallel ranks, which have
    other experts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.bias is not None:
            self.bias.sequence_parallel = False

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """Apply the experts' output matrices."""
        out, bias = super().forward(states)
        return (out if bias is None else out.clone()), bias


class PostNormLayer(transformer_layer.TransformerLayer):  # type: ignore[misc]
    """A layer that norms the outputs of attention and MLP before it adds them."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.post_attention_norm = Norm(config, config.hidden_size, config.layernorm_epsilon)
        self.post_mlp_norm = Norm(config, config.hidden_size, config.layernorm_epsilon)
        self.self_attn_bda: Any = _changed(self.self_attn_bda, self.post_attention_norm)
        self.mlp_bda: Any = _changed(self.mlp_bda, self.post_mlp_norm)


class ScaledLayer(transformer_layer.TransformerLayer):  # type: ignore[misc]
    """A layer that multiplies the outputs of attention and MLP before it adds them."""

    def __init__(self, *args: Any, multiplier: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.self_attn_bda: Any = _changed(self.self_attn_bda, lambda states: states * multiplier)
        self.mlp_bda: Any = _changed(self.mlp_bda, lambda states: states * multiplier)


def _changed(add: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Megatron's bias-dropout-add of something else; the families that want this have no bias there."""

    def prepare(training: bool, fused: bool) -> Any:
        inner = add(training, fused)
        return lambda output, residual, dropout: inner((change(output[0]), output[1]), residual, dropout)

    return prepare


def mark_shards(model: nn.Module) -> None:
    """Tell each parallel weight what it is.

    Megatron does so while it initialises, which it does not do here: on a CPU that makes every whole matrix on
    every rank, for weights that are read from files in a moment.
    """
    linear = tensor_parallel.ColumnParallelLinear, tensor_parallel.VocabParallelEmbedding
    for module in model.modules():
        for kinds, dim in ((linear, 0), (tensor_parallel.RowParallelLinear, 1)):
            weight = getattr(module, "weight", None)
            if isinstance(module, kinds) and weight is not None and not hasattr(weight, "tensor_model_parallel"):
                tensor_parallel.set_tensor_model_parallel_attributes(weight, True, dim, 1)
