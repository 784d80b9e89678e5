"""One forward pass over tokens of many sequences, laid out flat, with the engine's own key-value rows.

A step's tokens form one row of length N: first R decoding tokens (one for each of the arena's first R rows),
then S segments of C prompt tokens each, then padding. Everything but attention works on tokens one by one;
attention reads each token's own row of the arena, where the step's keys and values were written just before.
The transformers model is used as it is; `flat` brings the attention. What its layers pass to attention (heads, widths,
windows) is not read from its configuration but noted in a pass over one token.

Why the results don't depend on what else is in the batch: a row of a CPU matrix product in float32 comes out
the same to the last bit however many rows there are, once there are enough (fewer than 4 take another kernel,
and threads that split a dozen rows leave one another fewer than 4). So N and C are padded to multiples of 16, a
decoding token brings at least 4 query rows per key-value head, values are summed in blocks of 128 keys (a
product over 224 keys is split in two, one over 512 is not), and keys beyond a token's own position carry a
probability that is exactly 0. `tests/rollout/engines` holds it to that. Given up: other devices and dtypes,
whose kernels make no such promise; see `LocalEngine.capabilities`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.errors import EngineError, InvalidInput, InvalidWeights
from agentrl.models.mixers import set_plan, wrap_mixers
from agentrl.models.rope import too_long
from agentrl.models.sizes import longest_path
from agentrl.models.vision import language_of, load_lm, sees
from agentrl.rollout.engines.local.arena import Arena, bucket
from agentrl.rollout.engines.local.experts import ExpertRecorder
from agentrl.rollout.engines.local.flat import (
    ATTENTION,
    BLOCK,
    AttentionScores,
    LayerShape,
    Shapes,
    StepLayout,
    decode,
    prefill,
)
from agentrl.rollout.engines.local.images import ImageStore
from agentrl.rollout.engines.local.kernel import Kernel, make_kernel, suits
from agentrl.rollout.engines.local.parts import Shared, parts
from agentrl.rollout.engines.local.states import States

QUANTUM = 16
"""Token counts are padded to multiples of this."""
STATEFUL, BY_TOKEN = {"linear_attention", "conv", "hybrid"}, {"mlp", "moe"}
"""Transformers' names of layers that carry a state, and of layers that look at one token at a time."""


class UnsupportedModel(ValueError):
    """A model can't be computed in flat steps; the message says why."""


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Tokens [start, start + count) of the sequence that lives in `row`."""

    row: int
    start: int
    tokens: Sequence[int]


class ModelRunner:
    """A transformers causal language model behind flat steps.

    Attributes:
        model: the model, in evaluation mode.
        arena: its key-value rows.
        max_context: tokens of the longest path that it was made for.
        vocab_size: how many logits it gives.
        parameters: how many it has, tied ones once.
        images: the frames of its prompts, where it sees images.
        states: what its layers carry from token to token, where some do.
        recorder: notes which experts tokens go to, where that is wanted and the model has some.
        kernel: computes steps in place of transformers, where the model suits it and there is a compiler.
        kernel_name: its name, or torch where there is none although the model suits it; else empty.
        slow: why there is none although the model suits it; else empty.
    """

    def __init__(
        self,
        path: Path,
        device: str,
        dtype: str,
        arena_rows: int,
        arena_bytes: int,
        *,
        routed_experts: bool = False,
        context: int | None = None,
        kernel: str = "auto",
    ) -> None:
        """Load the model; `routed_experts` records which experts its tokens go to, and `context` bounds its paths.

        `kernel` is auto, a build of it (`kernel_build`), or torch, which computes every model through transformers.

        Raises:
            InvalidWeights: its files don't hold the weights of its configuration.
            EngineError: it can't be loaded, or its attention is of a kind that the flat step has no place for.
        """
        self.model = _load(path, dtype).eval().requires_grad_(False).to(device)
        self.device = torch.device(device)
        self.images = ImageStore(self.model) if sees(path) else None
        config = self.model.config.get_text_config()
        stateful = {mixer.layer for mixer in wrap_mixers(self.model)}
        self.states = States() if stateful else None
        try:
            _refuse_other_attention(config, context, stateful=bool(stateful))
            attending = self._shapes(config, stateful)
        except UnsupportedModel as why:
            raise EngineError(
                f"model={str(path)!r} ({config.model_type}) can't run on engine=local, which knows causal attention, "
                f"in full, within a window or in chunks: {why}. engine=sglang and engine=vllm run more models"
            ) from why
        shapes = list(attending.values())
        limits = [tokens for tokens in (longest_path(config), context) if tokens is not None]
        if not limits:
            raise EngineError(f"model={str(path)!r} gives no longest path in its config.json: set engine.max_context")
        self.max_context, self.vocab_size = min(limits), int(config.vocab_size)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self._heads, kv_heads = shapes[0].heads, shapes[0].kv_heads
        self._group = self._heads // kv_heads
        self._scores = {(one.scores.reach, one.scores.softcap): one.scores for one in shapes}
        recorder = ExpertRecorder(self.model) if routed_experts else None
        self.recorder = recorder if recorder is not None and recorder.layers else None
        self.arena = Arena(
            layers=len(shapes),
            heads=kv_heads,
            width=max(max(one.key_width, one.value_width) for one in shapes),
            rows=arena_rows,
            budget_bytes=arena_bytes,
            dtype=self.model.dtype,
            device=self.device,
            experts=(self.recorder.layers, self.recorder.topk) if self.recorder is not None else None,
            slots=list(attending),
        )
        self.kernel, self.kernel_name, self.slow = self._chosen_kernel(kernel, attending)
        if self.states is not None:
            self.arena.states = self.states.rows
            set_plan(self.model, self.states)

    def _chosen_kernel(self, kernel: str, attending: dict[int, LayerShape]) -> tuple[Kernel | None, str, str]:
        """The kernel, its name, and why there is none; see the class."""
        if not suits(self.model, attending, self.parameters):
            return None, "", ""
        build = None if kernel == "auto" else kernel
        made, slow = (None, "") if kernel == "torch" else make_kernel(self.model, self.max_context, build)
        return made, "torch" if made is None else made.name, slow

    @torch.inference_mode()
    def _shapes(self, config: Any, stateful: set[int]) -> dict[int, LayerShape]:
        found, zero = Shapes(), torch.zeros(1, 1, dtype=torch.long, device=self.device)
        set_plan(self.model, lambda mixer, hidden: hidden)
        try:
            self.model(input_ids=zero, position_ids=zero, use_cache=False, layout=found)
        except Exception as error:  # of transformers' models: there are hundreds of kinds
            why = f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0][:160]}"
            raise UnsupportedModel(f"its layers can't be called by their tokens alone ({why})") from error
        kinds = getattr(config, "layer_types", None) or []
        by_token = {layer for layer, kind in enumerate(kinds) if kind in BY_TOKEN}
        missing = set(range(config.num_hidden_layers)) - set(found.layers) - stateful - by_token
        if missing or not found.layers:
            raise UnsupportedModel(
                f"{len(missing) or config.num_hidden_layers} of its {config.num_hidden_layers} layers don't attend "
                "through transformers' attention interface",
            )
        shapes = {layer: found.layers[layer] for layer in sorted(found.layers)}
        if len({(one.heads, one.kv_heads) for one in shapes.values()}) > 1:
            raise UnsupportedModel("its layers differ in how many heads they have")
        return shapes

    @torch.inference_mode()
    def step(
        self,
        rows: int,
        decode: Sequence[tuple[int, int, int]],
        segments: Sequence[RowSegment],
        segment_size: int,
        keep: Sequence[int],
        shared: Sequence[Shared] = (),
        axes: Sequence[tuple[int, NDArray[np.int64]]] = (),
        ahead: Sequence[tuple[int, NDArray[np.int64]]] = (),
    ) -> Tensor:
        """Run one flat step.

        Args:
            rows: the decoding block's length: it spans the arena's first `rows` rows.
            decode: (row, position, token) of the rows that decode; the block's other rows compute nothing of use.
            segments: pieces of prompts, at most `segment_size` tokens each.
            segment_size: C, a multiple of 16.
            keep: which tokens' logits are wanted, by their place: row `r` of the decoding block is `r`, token
                `t` of segment `s` is `rows + s * C + t`.
            shared: decoding rows that begin with the same tokens, by blocks of `flat.BLOCK`.
            axes: positions with three axes, [n, 3], of the n tokens from a place of the step on.
            ahead: the last places of their rows, [n], that the n tokens from a place of the step on see.

        Returns:
            float32 logits, shape (len(keep), vocabulary).
        """
        if self.kernel is not None:
            return self._run_compiled(self.kernel, rows, decode, segments, segment_size, keep, shared)
        tokens, positions, layout = self._lay_out(rows, decode, segments, segment_size, shared)
        layout.last_N = _with_last(positions, ahead)
        self.arena.touched = max(self.arena.touched, layout.decode_keys, layout.segment_keys)
        if self.recorder is not None:
            self.recorder.layout = layout
        if self.states is not None:
            pieces = [
                (one.row, one.start, rows + index * segment_size, len(one.tokens)) for index, one in enumerate(segments)
            ]
            self.states.begin([(row, where) for row, where, _ in decode], pieces, self.device)
        padded = torch.tensor(list(keep) + [0] * (-len(keep) % QUANTUM), dtype=torch.long, device=self.device)
        if self.images is None:
            output = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=padded,
                layout=layout,
            ).logits
        else:
            output = self._look(self.images, tokens, _with_axes(positions, axes), padded, layout)
        if self.states is not None:
            self.states.end()
        logits: Tensor = output[0, : len(keep)].float()
        return logits

    def _look(self, images: ImageStore, tokens: Tensor, position: Tensor, keep: Tensor, layout: StepLayout) -> Tensor:
        """The logits of some tokens of a step in which images may be."""
        language = language_of(self.model.base_model)
        output = language(**images.inputs(tokens), position_ids=position, use_cache=False, layout=layout)
        logits: Tensor = self.model.get_output_embeddings()(output.last_hidden_state[:, keep])
        return logits

    def _run_compiled(
        self,
        kernel: Kernel,
        rows: int,
        decode: Sequence[tuple[int, int, int]],
        segments: Sequence[RowSegment],
        size: int,
        keep: Sequence[int],
        shared: Sequence[Shared],
    ) -> Tensor:
        """A step without padding, by the kernel."""
        row = [one for one, _, _ in decode]
        position, token = [where for _, where, _ in decode], [what for _, _, what in decode]
        found = {one: at for at, one in enumerate(row)}
        for index, one in enumerate(segments):
            base, count = rows + index * size, len(one.tokens)
            found.update(zip(range(base, base + count), range(len(token), len(token) + count), strict=True))
            token += one.tokens
            position += range(one.start, one.start + count)
            row += [one.row] * count
        self.arena.touched = max(self.arena.touched, bucket(1 + max(position, default=0)))
        return kernel.step(self.arena, (token, position, row), [found[place] for place in keep], shared)

    def row_invariant(self) -> bool:
        """Try on a few tokens whether this device's kernels keep what the module's docstring says.

        Layers that carry a state compute one token otherwise than several, so theirs do not.
        """
        return self.states is None and self._steps_agree() and (self.kernel is not None or self._attention_agrees())

    def _steps_agree(self) -> bool:
        """One path as one segment, as two beside a busy batch, and token by token."""
        tokens = [(7 * i + 3) % self.vocab_size for i in range(32)]
        rows = min(self.arena.rows, 24)
        alone = self.step(0, [], [RowSegment(0, 0, tokens)], 32, range(32))
        busy = [(row, 0, tokens[row]) for row in range(rows - 1)]
        pieces = [RowSegment(rows - 1, 0, tokens[:16]), RowSegment(rows - 1, 16, tokens[16:30])]
        found = [self.step(rows - 1, busy, pieces, 16, range(rows - 1, rows + 29))]
        found += [self.step(rows, [(rows - 1, at, tokens[at])], [], 16, [rows - 1]) for at in (30, 31)]
        self.arena.clear()
        return torch.equal(alone, torch.cat(found))

    @torch.no_grad()
    def _attention_agrees(self) -> bool:
        """One layer's attention at longer paths: as a segment, by decoding, and by decoding with a shared beginning."""
        self.arena.reserve(448)
        self.arena.touched = self.arena.length
        keys, values = self.arena.kv[0]
        dice = torch.Generator(device=self.device).manual_seed(0)
        count = min(self.arena.rows, 5)
        keys[:count] = torch.randn(keys.shape[1:], generator=dice, device=self.device, dtype=keys.dtype)
        values[:count] = torch.randn(keys.shape[1:], generator=dice, device=self.device, dtype=keys.dtype)
        query = torch.randn(self._heads, 16, keys.shape[-1], generator=dice, device=self.device, dtype=keys.dtype)
        query *= keys.shape[-1] ** -0.5
        agree = all(
            self._places_agree(query, keys, values, count, start, scores)
            for scores in self._scores.values()
            for start in (24, 120, 200, 300)
        )
        self.arena.clear()
        return agree

    def _places_agree(
        self, query: Tensor, keys: Tensor, values: Tensor, count: int, start: int, scores: AttentionScores
    ) -> bool:
        """A token after `start` others, whatever it is computed with."""
        _, _, layout = self._lay_out(0, [], [RowSegment(0, start, [0] * 16)], 16)
        segment = prefill(query, keys, values, layout, scores)
        together = Shared(tuple(range(count)), start // BLOCK * BLOCK)
        agree = True
        for reach, shared in ((bucket(start + 16), ()), (448, ()), (448, (together,) if together.length else ())):
            _, _, layout = self._lay_out(count, [(row, start + 15, 0) for row in range(count)], [], 16)
            layout.decode_keys = reach
            layout.decode_parts = parts(range(count), self._group, reach, shared, self.device)
            alike = decode(query[:, 15:].expand(-1, count, -1), keys, values, layout, scores)
            agree &= torch.equal(alike, segment[15].expand_as(alike))
        return agree

    def _lay_out(
        self,
        rows: int,
        decode: Sequence[tuple[int, int, int]],
        segments: Sequence[RowSegment],
        size: int,
        shared: Sequence[Shared] = (),
    ) -> tuple[Tensor, Tensor, StepLayout]:
        total = rows + len(segments) * size
        total += -total % QUANTUM
        token, position, row = [0] * total, [0] * total, [self.arena.scratch] * total
        for at, where, what in decode:
            token[at], position[at], row[at] = what, where, at
        for index, segment in enumerate(segments):
            base, count = rows + index * size, len(segment.tokens)
            token[base : base + count] = segment.tokens
            position[base : base + count] = range(segment.start, segment.start + count)
            row[base : base + count] = [segment.row] * count
        position_N = torch.tensor(position, device=self.device)
        layout = StepLayout(
            arena=self.arena,
            write_row_N=torch.tensor(row, device=self.device),
            position_N=position_N,
            rows=rows,
            segment_size=size,
        )
        if rows:
            layout.decode_keys = bucket(1 + max((where for _, where, _ in decode), default=0))
            decoding = [at for at, _, _ in decode]
            layout.decode_parts = parts(decoding, self._group, layout.decode_keys, shared, self.device)
        if segments:
            layout.segment_row_S = torch.tensor([segment.row for segment in segments], device=self.device)
            layout.segment_keys = bucket(max(segment.start + len(segment.tokens) for segment in segments))
        return torch.tensor(token, device=self.device), position_N, layout


def _with_axes(positions_N: Tensor, axes: Sequence[tuple[int, NDArray[np.int64]]]) -> Tensor:
    """A step's positions: [1, N], or [3, 1, N] where some tokens have other axes than their places in their paths."""
    if not axes:
        return positions_N[None]
    found = positions_N.repeat(3, 1, 1)
    for place, known in axes:
        found[:, 0, place : place + len(known)] = torch.from_numpy(known.T.copy()).to(found)
    return found


def _with_last(positions_N: Tensor, ahead: Sequence[tuple[int, NDArray[np.int64]]]) -> Tensor | None:
    """The last places that a step's tokens see; None where each sees no further than itself."""
    if not ahead:
        return None
    found = positions_N.clone()
    for place, known in ahead:
        found[place : place + len(known)] = torch.from_numpy(known.copy()).to(found)
    return found


def _load(path: Path, dtype: str) -> Any:
    """The model of a folder; errors as of `ModelRunner`."""
    try:
        return load_lm(path, getattr(torch, dtype), ATTENTION)
    except InvalidWeights:
        raise
    except InvalidInput as error:
        raise EngineError(str(error)) from error


def _refuse_other_attention(config: Any, context: int | None, *, stateful: bool) -> None:
    """Refuse by name what no pass over one token shows; `proof` tries the rest."""
    known = {"full_attention", "sliding_attention", "chunked_attention"} | (STATEFUL | BY_TOKEN if stateful else set())
    others = set(getattr(config, "layer_types", None) or []) - known
    if others:
        raise UnsupportedModel(f"it has layers of another kind ({', '.join(sorted(others))})")
    if why := too_long(config, context):
        raise UnsupportedModel(why)
