"""An adapter in a plan: how many numbers are trained, exchanged and published in the whole model's place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from agentrl.config import LoraConfig, WarmStartConfig
from agentrl.config.learners import LearnerConfig
from agentrl.train.algorithms import Algorithm
from agentrl.train.plan.memory import Numbers, Split, TrainerMemory
from agentrl.train.plan.shapes import Shape
from agentrl.train.trainers import TRAINERS

FLOAT32 = 4
"""Bytes of an adapter's number on every trainer, of its gradient, and of each of its two moments."""

PACKED = 0.5 + 4 / 64
"""Bytes of a number in four bits: 64 share a scale in float32."""

EMBEDDING = "model.embed_tokens"


def linear_sizes(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Yield the linear layers that an adapter may be on: the name, as files have it, inputs and outputs."""
    for number in range(shape.num_hidden_layers):
        for name, columns, rows in (*_attention(shape), *_mlp(shape, number)):
            yield f"model.layers.{number}.{name}", columns, rows


def _attention(shape: Shape) -> Iterator[tuple[str, int, int]]:
    hidden, queries = shape.hidden_size, shape.num_attention_heads * shape.head_dim
    keys, values = shape.num_key_value_heads * shape.head_dim, queries
    if shape.kv_lora_rank:
        latents, heads = shape.kv_lora_rank, shape.num_attention_heads
        values = heads * shape.v_head_dim
        yield "self_attn.q_a_proj", hidden, shape.q_lora_rank
        yield "self_attn.q_b_proj", shape.q_lora_rank, queries
        yield "self_attn.kv_a_proj_with_mqa", hidden, latents + shape.qk_rope_head_dim
        yield "self_attn.kv_b_proj", latents, queries - heads * shape.qk_rope_head_dim + values
    else:
        yield "self_attn.q_proj", hidden, queries
        yield from ((f"self_attn.{name}_proj", hidden, keys) for name in ("k", "v"))
    yield "self_attn.o_proj", values, hidden


def _mlp(shape: Shape, number: int) -> Iterator[tuple[str, int, int]]:
    name, wide = "mlp", shape.intermediate_size
    if shape.num_experts and number >= shape.first_k_dense_replace:
        name, wide = "mlp.shared_experts", shape.n_shared_experts * shape.moe_intermediate_size
    if wide:
        yield from ((f"{name}.{each}_proj", shape.hidden_size, wide) for each in ("gate", "up"))
        yield f"{name}.down_proj", wide, shape.hidden_size


def _modules(shape: Shape) -> Iterator[tuple[str, int]]:
    """The names and sizes of the modules that may be trained in full, tied ones once."""
    table, hidden = shape.vocab_size * shape.hidden_size, shape.hidden_size
    yield EMBEDDING, table
    if not shape.tie_word_embeddings:
        yield "lm_head", table
    yield "model.norm", hidden
    for number in range(shape.num_hidden_layers):
        yield from ((f"model.layers.{number}.{name}_layernorm", hidden) for name in ("input", "post_attention"))
    yield from ((name, columns * rows) for name, columns, rows in linear_sizes(shape))


def adapter_parameters(shape: Shape, lora: LoraConfig) -> int:
    """Return how many numbers a run's adapter has, with those of modules that are trained in full; 0: there is none."""
    if not lora.active:
        return 0
    if lora.adapter is not None:
        from agentrl.models.adapters import read_adapter  # brings torch

        saved = read_adapter(Path(lora.adapter))
        whole: dict[int, int] = {tensor.data_ptr(): tensor.numel() for tensor in saved.full.values()}
        pairs: list[int] = [a.numel() + b.numel() for a, b in saved.matrices.values()]
        return sum(pairs) + sum(whole.values())
    tied = ("lm_head",) if shape.tie_word_embeddings else ()
    full = {
        name: size
        for name, size in _modules(shape)
        if _matches((name, *tied) if name == EMBEDDING else (name,), lora.full)
    }
    chosen = [
        columns + rows
        for name, columns, rows in linear_sizes(shape)
        if name not in full and (not lora.targets or _matches((name,), lora.targets))
    ]
    expert = 2 * shape.hidden_size + 3 * shape.moe_intermediate_size  # gate and up are one tensor
    experts = shape.expert_layers * shape.num_experts * expert if lora.experts else 0
    return lora.rank * (sum(chosen) + experts) + sum(full.values())


def packed_parameters(shape: Shape, lora: LoraConfig) -> int:
    """Return how many of the base's numbers are held in four bits."""
    if lora.quantize == "none":
        return 0
    return sum(columns * rows for name, columns, rows in linear_sizes(shape) if not _matches((name,), lora.full))


def _matches(names: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def with_lora(numbers: Numbers, shape: Shape, lora: LoraConfig) -> Numbers:
    """Return a trainer's numbers with those of the adapter that it trains, and of a base in four bits."""
    return replace(numbers, adapter=adapter_parameters(shape, lora), packed=packed_parameters(shape, lora))


def with_adapter(memory: TrainerMemory, numbers: Numbers) -> TrainerMemory:
    """Return the memory of a trainer's device where it trains an adapter, which every rank has whole."""
    packed = (numbers.weight - PACKED) * numbers.packed
    own, moments = FLOAT32 * numbers.adapter, 2 * FLOAT32 * numbers.adapter
    return replace(
        memory,
        weights=memory.weights - packed + own,
        gradients=own,
        optimizer=0.0 if numbers.offloaded else moments,
        updating=moments if numbers.offloaded else 0.0,
        reference=own if memory.reference else 0.0,
        average=own if memory.average else 0.0,
    )


def describe_adapter(numbers: Numbers, warm: WarmStartConfig) -> Iterator[str]:
    """A line for the adapter that is trained, if one is."""
    if numbers.adapter:
        first = ", after a warm start of the whole model, whose memory is counted" if warm.steps else ""
        held = f", on {numbers.packed:,} in four bits" if numbers.packed else ""
        yield f"trained: an adapter of {numbers.adapter:,} parameters{held}{first}"


def trainer_needs(
    own: LearnerConfig, algorithm: Algorithm, shape: Shape, split: Split, *, imitates: bool
) -> tuple[Numbers, TrainerMemory]:
    """A trainer rank's numbers and memory: with an adapter those of it, unless the whole model imitates before."""
    plugin = TRAINERS.find(own.trainer.name)
    numbers = with_lora(plugin.numbers(own.trainer, algorithm), shape, own.lora)
    memory = plugin.memory(own.trainer, algorithm, shape, split)
    return numbers, with_adapter(memory, numbers) if numbers.adapter and not imitates else memory
