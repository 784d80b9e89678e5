"""The critic on Megatron: its head on every rank, hidden states on the last stage.

Every rank holds the whole head and its optimizer, d + 1 numbers and their moments in float32, the same on all
of them: each computes rows that no other rank computes, gradients are summed over all ranks, and each takes the same
step. So the head is not part of Megatron's model: it has no gradient buffer and no sharding; any rank may save it, and
every rank loads it.

Ranks of one tensor-parallel group have the same rows. Under sequence parallelism, each computes the rows whose
predictor is in its own part; otherwise rows are assigned round-robin.
"""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from torch import Tensor

from agentrl.train.forest.forest import Rows


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
