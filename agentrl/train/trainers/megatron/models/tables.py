"""Pieces of which families' tables are made: Megatron's names within a layer, and what they are cut from."""

from __future__ import annotations

from agentrl.train.trainers.megatron.models.layouts import (
    Gated,
    Grouped,
    Halves,
    InputCut,
    Joint,
    OutputCut,
    ParameterLayout,
    Whole,
)

Table = dict[str, ParameterLayout]

LAYER = "model.layers.{layer}."
EXPERT = LAYER + "mlp.experts.{expert}."

OUTSIDE: Table = {
    "embedding.word_embeddings.weight": OutputCut("model.embed_tokens.weight", vocabulary=True),
    "decoder.final_layernorm.weight": Whole("model.norm.weight"),
    "output_layer.weight": OutputCut("lm_head.weight", vocabulary=True),
}

NORMS: Table = {
    "input_layernorm.weight": Whole(LAYER + "input_layernorm.weight"),
    "pre_mlp_layernorm.weight": Whole(LAYER + "post_attention_layernorm.weight"),
}

POST_NORMS: Table = {
    "post_attention_norm.weight": Whole(LAYER + "post_self_attn_layernorm.weight"),
    "post_mlp_norm.weight": Whole(LAYER + "post_mlp_layernorm.weight"),
}

FOUR_NORMS: Table = {
    "input_layernorm.weight": Whole(LAYER + "input_layernorm.weight"),
    "post_attention_norm.weight": Whole(LAYER + "post_attention_layernorm.weight"),
    "pre_mlp_layernorm.weight": Whole(LAYER + "pre_feedforward_layernorm.weight"),
    "post_mlp_norm.weight": Whole(LAYER + "post_feedforward_layernorm.weight"),
}

ATTENTION: Table = {
    **{
        f"self_attention.linear_qkv.{kind}": Grouped(
            LAYER + f"self_attn.q_proj.{kind}", LAYER + f"self_attn.k_proj.{kind}", LAYER + f"self_attn.v_proj.{kind}"
        )
        for kind in ("weight", "bias")
    },
    "self_attention.q_layernorm.weight": Whole(LAYER + "self_attn.q_norm.weight"),
    "self_attention.k_layernorm.weight": Whole(LAYER + "self_attn.k_norm.weight"),
    "self_attention.linear_proj.weight": InputCut(LAYER + "self_attn.o_proj.weight"),
}

WIDE_NORMS: Table = {
    "self_attention.q_layernorm.weight": OutputCut(LAYER + "self_attn.q_norm.weight"),
    "self_attention.k_layernorm.weight": OutputCut(LAYER + "self_attn.k_norm.weight"),
}

JOINT_ATTENTION: Table = {
    "self_attention.linear_qkv.weight": Joint(LAYER + "self_attn.qkv_proj.weight"),
    "self_attention.linear_proj.weight": InputCut(LAYER + "self_attn.o_proj.weight"),
}

LATENT: Table = {
    "self_attention.linear_q_proj.weight": OutputCut(LAYER + "self_attn.q_proj.weight"),
    "self_attention.linear_q_down_proj.weight": OutputCut(LAYER + "self_attn.q_a_proj.weight"),
    "self_attention.q_layernorm.weight": Whole(LAYER + "self_attn.q_a_layernorm.weight"),
    "self_attention.linear_q_up_proj.weight": OutputCut(LAYER + "self_attn.q_b_proj.weight"),
    "self_attention.linear_kv_down_proj.weight": OutputCut(LAYER + "self_attn.kv_a_proj_with_mqa.weight"),
    "self_attention.kv_layernorm.weight": Whole(LAYER + "self_attn.kv_a_layernorm.weight"),
    "self_attention.linear_kv_up_proj.weight": OutputCut(LAYER + "self_attn.kv_b_proj.weight"),
    "self_attention.linear_proj.weight": InputCut(LAYER + "self_attn.o_proj.weight"),
}

MLP: Table = {
    "mlp.linear_fc1.weight": Gated(LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": InputCut(LAYER + "mlp.down_proj.weight"),
}

JOINT_MLP: Table = {
    "mlp.linear_fc1.weight": Halves(LAYER + "mlp.gate_up_proj.weight"),
    "mlp.linear_fc2.weight": InputCut(LAYER + "mlp.down_proj.weight"),
}

EXPERTS: Table = {
    "mlp.router.weight": Whole(LAYER + "mlp.gate.weight"),
    "mlp.router.expert_bias": Whole(LAYER + "mlp.gate.e_score_correction_bias", precise=True),
    "mlp.experts.linear_fc1.weight": Gated(EXPERT + "gate_proj.weight", EXPERT + "up_proj.weight"),
    "mlp.experts.linear_fc2.weight": InputCut(EXPERT + "down_proj.weight"),
}

SHARED_EXPERT: Table = {
    "mlp.shared_experts.gate_weight": Whole(LAYER + "mlp.shared_expert_gate.weight"),
    "mlp.shared_experts.linear_fc1.weight": Gated(
        LAYER + "mlp.shared_expert.gate_proj.weight", LAYER + "mlp.shared_expert.up_proj.weight"
    ),
    "mlp.shared_experts.linear_fc2.weight": InputCut(LAYER + "mlp.shared_expert.down_proj.weight"),
}

SHARED_EXPERTS: Table = {
    "mlp.shared_experts.linear_fc1.weight": Gated(
        LAYER + "mlp.shared_experts.gate_proj.weight", LAYER + "mlp.shared_experts.up_proj.weight"
    ),
    "mlp.shared_experts.linear_fc2.weight": InputCut(LAYER + "mlp.shared_experts.down_proj.weight"),
}
