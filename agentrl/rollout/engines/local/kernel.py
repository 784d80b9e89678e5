"""A flat step of a small Llama-like model as one call of compiled C (kernel.c), in place of hundreds of torch's.

A tiny model's step through transformers is Python and dispatch around products of microseconds. Here a step's tokens
are computed without padding, and a token's bits can't depend on the batch, since no sum's order does. Keys and values
are those of the arena, in its layout. Weights are copied, packed for products, whenever the model's own have changed.

Given up: large models, other dtypes and devices, and whatever isn't Llama, Mistral, Qwen 2 or Qwen 3 with
attention in full; those run through transformers (`runner`), whose sums have another order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.errors import MissingExtra
from agentrl.rollout.engines.local.arena import Arena
from agentrl.rollout.engines.local.flat import PLAIN, LayerShape
from agentrl.rollout.engines.local.kernel_build import choose_build, compile_kernel, name_of
from agentrl.rollout.engines.local.parts import Shared

LARGEST = 10_000_000
"""Parameters of the largest model that is computed here."""
MODELS = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
LANES = 16
"""Widths are multiples of this: of the widest vector register's numbers."""
LEAST = 2_000_000
"""Multiplications that are worth a thread's start: some 0.1 ms."""
FEWEST = 64
"""Positions that are computed at least: trials of the engine use so many."""


class _Layer(Structure):
    NAMES = ("norm_in", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "norm_mlp", "gate_up", "down")
    _fields_ = [(name, c_void_p) for name in NAMES]


class _Model(Structure):
    SIZES = ("layers", "width", "heads", "kv_heads", "head", "mlp", "vocab")
    POINTERS = ("embedding", "norm", "head_matrix", "cosines", "sines")
    _fields_ = [
        *((name, c_int64) for name in SIZES),
        ("eps", c_float),
        ("scale", c_float),
        *((name, c_void_p) for name in POINTERS),
        ("layer", POINTER(_Layer)),
    ]


class _Step(Structure):
    STRIDES = ("row_stride", "head_stride", "values_offset", "layer_stride")
    SIZES = ("tokens", "kept", "threads", "least", "score_stride", *STRIDES)
    POINTERS = ("token", "position", "row", "from_row", "from_length", "keep", "kv", "logits", "scratch")
    _fields_ = [*((name, c_int64) for name in SIZES), *((name, c_void_p) for name in POINTERS)]


def suits(model: Any, shapes: Mapping[int, LayerShape], parameters: int) -> bool:
    """Return whether a model can be computed here, compiler or not."""
    config, device = model.config, model.device.type
    if type(model).__name__ not in MODELS or parameters >= LARGEST or device != "cpu" or model.dtype != torch.float32:
        return False
    first, rotary = model.model.layers[0], model.model.rotary_emb
    heads = {(one.key_width, one.value_width, one.scores) for one in shapes.values()}
    (width, _, _), *others = heads
    return (
        not others
        and heads == {(width, width, PLAIN)}
        and getattr(rotary, "rope_type", "default") in ("default", "linear", "llama3", "yarn")
        and config.hidden_act == "silu"
        and all(size % LANES == 0 for size in (width, config.hidden_size, config.intermediate_size))
        and (first.self_attn.q_proj.bias is None) == (first.self_attn.v_proj.bias is None)
        and all(layer.bias is None for layer in (first.self_attn.o_proj, first.mlp.gate_proj, first.mlp.down_proj))
    )


def _library(build: str) -> tuple[Any, str]:
    made = compile_kernel(build)
    library = ctypes.CDLL(str(made))
    library.agentrl_scratch.restype = library.agentrl_scores.restype = library.agentrl_panel.restype = c_int64
    return library, name_of(made)


class Kernel:
    """A model's weights in the kernel's form, and its step.

    Args:
        model: see `suits`.
        longest: tokens of the longest path.
        build: of `BUILDS`; None is the fastest that this machine's processor runs.

    Attributes:
        threads: a step's threads at most. They change no bit.
        least: multiplications for which a thread is started.

    Raises:
        MissingExtra: there is no compiler.
    """

    def __init__(self, model: Any, longest: int, build: str | None = None) -> None:
        self._library, self.name = _library(build or choose_build())
        self._panel = int(self._library.agentrl_panel())
        self._model = model
        self._watched = list(model.parameters())
        self._seen = -1
        self._held: list[Tensor] = []
        zero = torch.zeros(1, 1, model.config.hidden_size)
        tables = model.model.rotary_emb(zero, torch.arange(max(longest, FEWEST))[None])
        self._cosines, self._sines = (table[0].contiguous() for table in tables)
        self._layers: Any = None
        self._c = _Model()
        self._scratch = torch.empty(0)
        self.threads, self.least = 1, LEAST

    def step(
        self,
        arena: Arena,
        tokens: Sequence[Sequence[int]],
        keep: Sequence[int],
        shared: Sequence[Shared] = (),
    ) -> Tensor:
        """Compute tokens and write their keys and values into the arena.

        Args:
            arena: where they belong.
            tokens: three lists: what they are, their places in their paths, and the rows that these have.
            keep: the tokens whose logits are wanted, by their places in the lists.
            shared: rows that begin alike.

        Returns:
            float32 logits, shape (len(keep), vocabulary).
        """
        self._refresh()
        sources, lengths = self._sources(tokens[2], shared)
        table = torch.from_numpy(np.array([*tokens, sources, lengths], dtype=np.int64))
        kept = torch.from_numpy(np.array(keep, dtype=np.int64))
        logits = torch.empty(len(keep), self._c.vocab)
        count = table.shape[1]
        scores = self._library.agentrl_scores(c_int64(arena.length))
        needed = self._library.agentrl_scratch(ctypes.byref(self._c), c_int64(count)) + self.threads * scores
        if self._scratch.numel() < needed:
            self._scratch = torch.empty(needed)
        kv = arena.kv
        step = _Step(
            *(count, len(keep), self.threads, self.least, scores),
            *(kv.stride(2), kv.stride(3), kv.stride(1), kv.stride(0)),
            *(one.data_ptr() for one in (*table, kept, kv, logits, self._scratch)),
        )
        self._library.agentrl_step(ctypes.byref(self._c), ctypes.byref(step))
        return logits

    @staticmethod
    def _sources(rows: Sequence[int], shared: Sequence[Shared]) -> tuple[Sequence[int], Sequence[int]]:
        """For each token the row of its first keys, and how many these are."""
        where = {row: (one.rows[0], one.length) for one in shared for row in one.rows}
        if not where:
            return rows, [0] * len(rows)
        found = [where.get(row, (row, 0)) for row in rows]
        return [row for row, _ in found], [length for _, length in found]

    def _refresh(self) -> None:
        """Pack the weights anew where the model's have changed."""
        seen = sum(parameter._version for parameter in self._watched)
        if seen == self._seen:
            return
        self._seen, self._held = seen, []
        core, config = self._model.model, self._model.config
        layers = list(core.layers)
        attention = layers[0].self_attn
        self._layers = (_Layer * len(layers))(*map(self._layer, layers))
        self._c = _Model(
            layers=len(layers),
            width=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head=attention.head_dim,
            mlp=config.intermediate_size,
            vocab=config.vocab_size,
            eps=config.rms_norm_eps,
            scale=attention.scaling,
            embedding=self._plain(core.embed_tokens.weight),
            norm=self._plain(core.norm.weight),
            head_matrix=self._pack(self._model.lm_head.weight),
            cosines=self._cosines.data_ptr(),
            sines=self._sines.data_ptr(),
            layer=self._layers,
        )

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        three = (attention.q_proj, attention.k_proj, attention.v_proj)
        biased = three[0].bias is not None
        normed = getattr(attention, "q_norm", None) is not None
        return _Layer(
            norm_in=self._plain(layer.input_layernorm.weight),
            qkv=self._pack(*(one.weight for one in three)),
            qkv_bias=self._plain(self._pad(torch.cat([one.bias for one in three]))) if biased else None,
            q_norm=self._plain(attention.q_norm.weight) if normed else None,
            k_norm=self._plain(attention.k_norm.weight) if normed else None,
            out=self._pack(attention.o_proj.weight),
            norm_mlp=self._plain(layer.post_attention_layernorm.weight),
            gate_up=self._pack(mlp.gate_proj.weight, mlp.up_proj.weight),
            down=self._pack(mlp.down_proj.weight),
        )

    def _plain(self, tensor: Tensor) -> int:
        self._held.append(tensor.detach().contiguous())
        return self._held[-1].data_ptr()

    def _pack(self, *matrices: Tensor) -> int:
        """Matrices [outputs, inputs] below each other, as panels of outputs side by side: [panels, inputs, panel]."""
        whole = self._pad(torch.cat([matrix.detach() for matrix in matrices]))
        return self._plain(whole.view(-1, self._panel, whole.shape[1]).transpose(1, 2))

    def _pad(self, rows: Tensor) -> Tensor:
        short = -len(rows) % self._panel
        return rows if not short else torch.cat((rows, rows.new_zeros(short, *rows.shape[1:])))


def make_kernel(model: Any, longest: int, build: str | None = None) -> tuple[Kernel | None, str]:
    """Return the kernel of a model that suits it, or nothing and why; arguments are as for `Kernel`."""
    try:
        return Kernel(model, longest, build), ""
    except (MissingExtra, OSError) as error:
        return None, str(error)
