"""Forward and backward passes through a sharded model, by Megatron's own schedules.

`run` computes a rank's micro-batches (without pipeline, 1F1B or interleaved, by the layout) and calls `use` on the last
stage with each one's hidden states and heads. It calls the model's parts itself: Megatron's `forward` computes the
logits of all tokens, and here only the rows that predict a trained token go through the head.

Megatron averages over micro-batches and data-parallel ranks; our losses are sums whose normalisers are inside.
So a loss is scaled up by that factor; the auxiliary losses of experts, which have no such normaliser, remain means.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.utils import get_attr_wrapped_model
from torch import Tensor

from agentrl.train.algorithms.divergences import Divergence
from agentrl.train.forest.distribution import Drawn
from agentrl.train.forest.forest import Rows
from agentrl.train.trainers.critic import ValueHead
from agentrl.train.trainers.head import read_scores, vocabulary_logps
from agentrl.train.trainers.megatron.attention import PLANS
from agentrl.train.trainers.megatron.copied import copy_to_ranks
from agentrl.train.trainers.megatron.micro import Micro
from agentrl.train.trainers.megatron.models.images import place_images
from agentrl.train.trainers.megatron.models.scores import head_of_scores
from agentrl.train.trainers.teachers.divergence import VocabularyHead, row_divergences

if TYPE_CHECKING:
    from agentrl.train.trainers.ranks.balance import Share

Use = Callable[[Micro, "Heads"], Tensor]
"""(micro-batch, its heads) -> loss."""

BeforeEach = Callable[[Micro, Any], None]
"""Called before a chunk computes a micro-batch."""


def run(
    chunks: Sequence[torch.nn.Module],
    micros: Sequence[Micro],
    use: Use,
    *,
    learn: bool,
    before: BeforeEach | None = None,
) -> None:
    """Compute this rank's micro-batches.

    Args:
        chunks: its part of the model, wrapped for data parallelism.
        micros: its micro-batches, as many as every other rank has.
        use: computes a micro-batch's loss, on ranks of the last stage.
        learn: go backward as well, and reduce the gradients over ranks.
        before: see `BeforeEach`.
    """
    scale = len(micros) * parallel_state.get_data_parallel_world_size()

    def forward(batches: Iterator[Micro], chunk: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], tuple[Any, Any]]]:
        micro, model = next(batches), unwrap(chunk)
        if before is not None:
            before(micro, model)
        out = model.decoder(
            hidden_states=embed(model, micro),
            attention_mask=micro.table,
            rotary_pos_emb=None,
            padding_mask=padding_of(model, micro),
        )
        return out, functools.partial(loss_of, micro, model)

    def loss_of(micro: Micro, model: Any, out: Tensor) -> tuple[Tensor, None]:
        loss = use(micro, Heads(model, out, micro)) + 0.0 * out.sum()  # without rows, backward still starts here
        return loss * scale, None

    for chunk in chunks:
        chunk.train(learn)
    with torch.set_grad_enabled(learn):
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[iter(micros) for _ in chunks],
            model=list(chunks),
            num_microbatches=len(micros),
            seq_length=len(micros[0].share.held),
            micro_batch_size=1,
            forward_only=not learn,
        )
    PLANS.forget()


def unwrap(chunk: torch.nn.Module) -> Any:
    """Return the GPT model inside a chunk's wrappers."""
    return get_attr_wrapped_model(chunk, "decoder", allow_none=False, return_model_obj=True)


def embed(model: Any, micro: Micro) -> Tensor | None:
    """[L, 1, d] on the first stage (a part of L under sequence parallelism); other stages receive theirs."""
    if not model.pre_process:
        return None
    out: Tensor = model.embedding(input_ids=micro.token_ids, position_ids=None)
    return out if micro.images is None else place_images(model, out, micro.images)


def padding_of(model: Any, micro: Micro) -> Tensor | None:
    """The padding that this rank's routers see: under sequence parallelism a part of it."""
    if micro.padding is None or not model.config.sequence_parallel:
        return micro.padding
    parts = micro.padding.chunk(parallel_state.get_tensor_model_parallel_world_size(), 1)
    mine: Tensor = parts[parallel_state.get_tensor_model_parallel_rank()]
    return mine


@dataclass(frozen=True, slots=True)
class Heads:
    """A micro-batch's last hidden states, and the heads that read them; nothing is computed before it is called."""

    model: Any
    out: Tensor
    micro: Micro

    def predicting(self) -> Tensor:
        """The hidden states that predict the micro-batch's rows, whole on every rank of the head: [P, d]."""
        rows = self.micro.rows
        if self.model.config.sequence_parallel:
            states = gather_from_sequence_parallel_region(self.out).squeeze(1)  # its backward reduces, and scatters
            return cast(Tensor, states.index_select(0, rows.predictor))
        return copy_to_ranks(self.out.squeeze(1).index_select(0, rows.predictor))

    def divergence(self, wanted: Divergence | None, teacher: VocabularyHead | None) -> Tensor | None:
        """The rows' divergences from what their forest has of the teacher: [P]; None for none."""
        if wanted is None or not len(self.micro.rows):
            return None
        return row_divergences(wanted, self.predicting(), head_of(self.model), self.micro.rows, teacher)

    def logps(self) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of the micro-batch's rows, or their scores (`read_scores`): [P] each."""
        rows = self.micro.rows
        if (head := head_of_scores(self.model)) is not None:
            return self._scores(head)
        return vocabulary_logps(
            self.predicting(),
            head_weight(self.model),
            rows.token_ids,
            rows.temperature,
            group=parallel_state.get_tensor_model_parallel_group(),
            vocabulary=self.model.sizes.vocabulary,
            shape=self.model.logits,
            drawn=Drawn.of(rows),
        )

    def _scores(self, head: torch.nn.Linear) -> tuple[Tensor, Tensor]:
        """Computed from whole states by every tensor rank alike, so none of their gradients are summed."""
        states = self.out.squeeze(1)
        if self.model.config.sequence_parallel:
            states = gather_from_sequence_parallel_region(states, tensor_parallel_output_grad=False)
        return read_scores(head, states.index_select(0, self.micro.rows.predictor), self.micro.rows)

    def values(self, head: ValueHead) -> Tensor:
        """The critic's value of the state before each row's target: [P].

        It is computed from the hidden states themselves, before the region that sums gradients over
        vocabulary shards; under sequence parallelism the values (and not the states) are gathered.
        """
        values = head.fixed(self.out.squeeze(1))
        if self.model.config.sequence_parallel:
            values = gather_from_sequence_parallel_region(values, tensor_parallel_output_grad=False)
        return values.index_select(0, self.micro.rows.predictor)

    def states(self) -> tuple[Tensor, Rows]:
        """This rank's part of the rows with the hidden states that predict them, in the CPU's memory."""
        states, rows = own_rows(
            self.out.squeeze(1), self.micro.rows, sequence_parallel=self.model.config.sequence_parallel
        )
        return states.cpu(), rows


def head_of(model: Any) -> VocabularyHead:
    """This rank's part of the language-model head, on the last stage."""
    group, vocabulary = parallel_state.get_tensor_model_parallel_group(), model.sizes.vocabulary
    return VocabularyHead(head_weight(model), None, model.logits, group, vocabulary)


def head_weight(model: Any) -> Tensor:
    """This rank's rows of the language-model head."""
    if model.share_embeddings_and_output_weights:
        shared: Tensor = model.shared_embedding_or_output_weight()
        return shared
    weight: Tensor = model.output_layer.weight
    return weight


def layer_outputs(rank: Any, share: Share, tokens: int) -> list[Tensor] | None:
    """Each decoder layer's output for a batch of one forest, on rank 0: [T, d] each, float32, on the CPU.

    Ranks of a context or sequence hold some tokens each, of a pipeline some layers; tensor ranks write the same.
    """
    micros = rank.prepare(share)
    found: list[tuple[int, Tensor, Tensor]] = []
    now = list[Micro]()

    def before(micro: Micro, model: Any) -> None:
        now[:] = [micro]
        rank.routers.before(micro, model)

    def keep(layer: Any, _: Any, output: Any) -> None:
        (micro,) = now
        hidden = (output[0] if isinstance(output, tuple) else output).detach().squeeze(1).float().cpu()
        if micro.work.origin >= 0:
            found.append((layer.layer_number - 1, *_own_tokens(micro, hidden)))

    hooks = [layer.register_forward_hook(keep) for model in rank.models for layer in model.decoder.layers]
    try:
        run(rank.chunks, micros, lambda _, heads: heads.out.sum(), learn=False, before=before)
    finally:
        for hook in hooks:
            hook.remove()
    everyone = rank.gather(found)
    if everyone is None:
        return None
    outputs = [torch.zeros(tokens, rank.width) for _ in range(rank.models[0].config.num_layers)]
    for number, where, hidden in (entry for each in everyone for entry in each):
        outputs[number][where] = hidden
    return outputs


def _own_tokens(micro: Micro, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of this rank's tokens in a forest, and their hidden states, without padding."""
    held = micro.share.mine
    if len(hidden) < len(held):  # under sequence parallelism
        held = held.chunk(len(held) // len(hidden))[parallel_state.get_tensor_model_parallel_rank()]
    real = held < len(micro.work.forest)
    return held[real] + micro.work.offset, hidden[real]


def own_rows(states: Tensor, rows: Rows, *, sequence_parallel: bool) -> tuple[Tensor, Rows]:
    """Return this rank's part of a micro-batch's rows, and the hidden states that predict them.

    Args:
        states: [L, d] of the tokens that this rank holds; under sequence parallelism a part of its context's.
        rows: P pairs, the same on every rank of the tensor-parallel group.
        sequence_parallel: whether the group shares the sequence.
    """
    rank, size = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    if sequence_parallel:
        begin = rank * len(states)
        mine = torch.nonzero((rows.predictor >= begin) & (rows.predictor < begin + len(states))).flatten()
    else:
        begin = 0
        mine = torch.arange(rank, len(rows), size, device=rows.predictor.device)
    return states[rows.predictor[mine] - begin], rows.take(mine)
