"""The assembly of this rank's part of a Megatron model from a configuration.

Sizes of the parallel groups are read from Megatron's own parallel state, which must be initialised; so a
model can't be built for another layout than the one that runs. Weights are not initialised: `weights.load` fills
every one of them, and says so if it can't.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType, LayerType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttentionSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)

from agentrl.errors import InvalidInput
from agentrl.train.trainers.head import Logits
from agentrl.train.trainers.megatron.attention import ForestAttention
from agentrl.train.trainers.megatron.models.family import Family
from agentrl.train.trainers.megatron.models.layers import (
    ExpertDown,
    LatentAttention,
    LatentNorm,
    Norm,
    PostNormLayer,
    ScaledLayer,
    SelfAttention,
    WideNorm,
    mark_shards,
)
from agentrl.train.trainers.megatron.models.layouts import ModelSizes
from agentrl.train.trainers.megatron.models.rotary import Rotary

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
"""Activations by their names in configurations (transformers.activations)."""

COMMON: dict[str, Any] = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "perform_initialization": False,
    "transformer_impl": "local",
    # Fused kernels of Apex and TransformerEngine, which need not be there.
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    # Reinforcement learning leaves the router as it was trained, unless the trainer's settings say otherwise.
    "moe_router_load_balancing_type": "none",
    "moe_router_bias_update_rate": 0.0,
    "moe_router_dtype": "fp32",
}
"""The settings that all families share; a family's come after these, and the trainer's last."""


def build(family: Family, hf: Any, **settings: Any) -> list[GPTModel]:
    """Build this rank's chunks of the model, one unless the pipeline is interleaved. Weights are not set; see `load`.

    Args:
        family: from `family_of`.
        hf: the Hugging Face configuration, from `read_config`.
        settings: fields of Megatron's TransformerConfig, which override the family's: `sequence_parallel`,
            `params_dtype`, `pipeline_dtype`, recomputation, a pipeline's uneven split, dispatchers, auxiliary losses.

    Raises:
        InvalidInput: the model has something that the family can't express.
        ValueError: a setting that Megatron refuses, in its words.
    """
    config = transformer_config(family, hf, **settings)
    layers = layer_specs(family, hf, config)
    virtual = config.virtual_pipeline_model_parallel_size
    stages = [None] if virtual is None else range(virtual)
    return [_chunk(family, hf, config, layers, stage) for stage in stages]


def transformer_config(family: Family, hf: Any, **settings: Any) -> TransformerConfig:
    """Megatron's configuration of the model, in the layout that runs."""
    family.refuse(hf)
    fields = {
        **COMMON,
        "num_layers": hf.num_hidden_layers,
        "hidden_size": hf.hidden_size,
        "ffn_hidden_size": hf.intermediate_size,
        "num_attention_heads": hf.num_attention_heads,
        "num_query_groups": getattr(hf, "num_key_value_heads", None) or hf.num_attention_heads,
        "layernorm_epsilon": hf.rms_norm_eps,
        "use_cpu_initialization": not torch.cuda.is_available(),
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_model_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline_model_parallel_size": parallel_state.get_virtual_pipeline_model_parallel_world_size(),
        "context_parallel_size": parallel_state.get_context_parallel_world_size(),
        "expert_model_parallel_size": parallel_state.get_expert_model_parallel_world_size(),
        "expert_tensor_parallel_size": parallel_state.get_expert_tensor_parallel_world_size(),
        "params_dtype": torch.float32,
        "pipeline_dtype": torch.float32,
        "activation_func": activation(hf),
        **family.settings(hf),
        **settings,
    }
    tensor = fields["tensor_model_parallel_size"]
    if fields["add_bias_linear"] and fields.get("num_moe_experts") and fields["expert_tensor_parallel_size"] > 1:
        raise InvalidInput(
            f"{hf.model_type}: trainer.tensor_parallel={tensor} would cut experts that have biases, "
            "which Megatron can't; trainer.expert_parallel shares them whole"
        )
    kind = MLATransformerConfig if fields.get("multi_latent_attention") else TransformerConfig
    return cast(TransformerConfig, kind(**fields))


def activation(hf: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the activation of an MLP's gate."""
    name = getattr(hf, "hidden_act", None) or getattr(hf, "hidden_activation", None) or "silu"
    if name not in ACTIVATIONS:
        raise InvalidInput(f"{hf.model_type}: hidden_act={name!r} is not supported, only {' or '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def sizes(hf: Any, config: TransformerConfig) -> ModelSizes:
    """Return the sizes of a model that layouts depend on."""
    return ModelSizes(
        heads=config.num_attention_heads,
        groups=config.num_query_groups or config.num_attention_heads,
        head_dim=config.kv_channels or 0,
        vocabulary=hf.vocab_size,
    )


def padded_vocabulary(hf: Any) -> int:
    """The vocabulary, up to the next multiple of the tensor-parallel ranks; logits beyond the real one are to mask."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    return int(-(-hf.vocab_size // ranks) * ranks)


def layer_specs(family: Family, hf: Any, config: TransformerConfig) -> list[ModuleSpec]:
    """One specification for each of the whole model's layers."""
    rotary, count = family.rotary(hf), config.num_layers
    rotaries = rotary if isinstance(rotary, Sequence) else [rotary] * count
    sparse = config.moe_layer_freq if isinstance(config.moe_layer_freq, list) else [1] * count
    experts = [config.num_moe_experts if on else None for on in sparse]
    attention = [_attention(family, hf, config, *each) for each in zip(rotaries, family.windows(hf), strict=True)]
    return [_layer(family, hf, *each) for each in zip(attention, experts, strict=True)]


def _layer(family: Family, hf: Any, attention: ModuleSpec, experts: int | None) -> ModuleSpec:
    norm = Norm if family.pre_norms else IdentityOp
    params = {"multiplier": float(family.residual(hf))} if family.residual(hf) != 1.0 else {}
    return ModuleSpec(
        module=PostNormLayer if family.post_norms else ScaledLayer if params else TransformerLayer,
        params=params,
        submodules=TransformerLayerSubmodules(
            input_layernorm=norm,
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=norm,
            mlp=_mlp(experts),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def _mlp(experts: int | None) -> ModuleSpec:
    made: ModuleSpec = get_mlp_module_spec_for_backend(LocalSpecProvider(), num_experts=experts)
    if experts:
        made.submodules.experts.submodules.linear_fc2 = ExpertDown
    return made


def _attention(
    family: Family, hf: Any, config: TransformerConfig, rotary: Rotary | None, window: int | None
) -> ModuleSpec:
    column, row = LocalSpecProvider().column_parallel_linear(), LocalSpecProvider().row_parallel_linear()
    params = {"attn_mask_type": AttnMaskType.causal, "rotary": rotary}
    seen: dict[str, Any] = {"window": window, "softcap": family.softcap(hf)}
    if config.multi_latent_attention:
        submodules: Any = MLASelfAttentionSubmodules(
            linear_q_proj=column,
            linear_q_down_proj=column,
            linear_q_up_proj=column,
            linear_kv_down_proj=column,
            linear_kv_up_proj=column,
            core_attention=ModuleSpec(module=ForestAttention, params=seen),
            linear_proj=row,
            q_layernorm=LatentNorm,
            kv_layernorm=LatentNorm,
        )
        return ModuleSpec(module=LatentAttention, params=params, submodules=submodules)
    norm: Any = Norm if config.qk_layernorm else None
    norms = [norm, norm]
    if family.wide_norms:
        heads = config.num_attention_heads, config.num_query_groups
        norms = [ModuleSpec(module=WideNorm, params={"heads": each}) for each in heads]
    submodules = SelfAttentionSubmodules(
        linear_qkv=column,
        core_attention=partial(ForestAttention, **seen),
        linear_proj=row,
        q_layernorm=norms[0],
        k_layernorm=norms[1],
    )
    return ModuleSpec(module=SelfAttention, params=params, submodules=submodules)


def _chunk(family: Family, hf: Any, config: TransformerConfig, layers: list[ModuleSpec], stage: int | None) -> GPTModel:
    model = GPTModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules(
            layer_specs=[layers[i] for i in _layers_of(config, stage)], layer_norm=Norm
        ),
        vocab_size=padded_vocabulary(hf),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=hf.tie_word_embeddings,
        position_embedding_type="none",
        vp_stage=stage,
    )
    model.sizes, model.logits = sizes(hf, config), Logits.of(hf)
    if model.post_process:  # of Megatron's own forward; the trainer's head takes weights and shape as they are
        model.output_layer.register_forward_hook(lambda _, __, out: (model.logits(out[0]), *out[1:]))
    if model.pre_process and family.embedding(hf) != 1.0:
        factor = torch.tensor(family.embedding(hf))
        model.embedding.register_forward_hook(lambda _, __, out: out * factor.to(out))
    mark_shards(model)
    return model


def _layers_of(config: TransformerConfig, stage: int | None) -> range | list[int]:
    """The numbers, counted from 0 over the whole model, of the layers in one of this rank's chunks."""
    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        return list(layout.get_layer_id_list(layer_type=LayerType.decoder, vp_stage=stage))
    first = get_transformer_layer_offset(config, vp_stage=stage)
    return range(first, first + get_num_layers_to_build(config, vp_stage=stage))
