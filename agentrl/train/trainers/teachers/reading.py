"""A model's reading of a forest for a divergence: its most probable tokens, or its hidden states, at each target."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.train.algorithms.divergences import IDS, LOGPS, STATES
from agentrl.train.forest.forest import Rows
from agentrl.train.trainers.head import chunk_on
from agentrl.train.trainers.teachers.divergence import VocabularyHead


@torch.no_grad()
def read_rows(head: VocabularyHead, states: Tensor, rows: Rows, length: int, top_k: int | None) -> dict[str, Tensor]:
    """Return what the head says of each row, at the row's temperature.

    Args:
        head: the model's.
        states: [P, d], the hidden states that predict the rows.
        rows: a forest's, P of them.
        length: the forest's, T.
        top_k: how many of the most probable tokens; None: the hidden states instead.

    Returns:
        In the CPU's memory, by the targets: `logp` [T] of the target, and either `IDS` and `LOGPS` [T, k] or `STATES`
        [T, d]; elsewhere 0, and -1 for ids.
    """
    logp = states.new_zeros(len(rows), dtype=torch.float32)
    most = min(top_k or 0, head.weight.shape[0])
    ids = torch.full((len(rows), top_k or 0), -1, dtype=torch.int64, device=states.device)
    logps = logp.new_zeros(ids.shape)
    size = max(1, chunk_on(states.device) // head.weight.shape[0])
    for at in (slice(start, start + size) for start in range(0, len(rows), size)):
        own = head.logps(states[at], rows.temperature[at])
        logp[at] = own.gather(1, rows.token_ids[at, None]).squeeze(1)
        if most:
            logps[at, :most], ids[at, :most] = own.topk(most)
    found = {"logp": logp, **({STATES: states.float()} if top_k is None else {IDS: ids.int(), LOGPS: logps})}
    return {name: _at_targets(values.cpu(), rows.target.cpu(), length, name) for name, values in found.items()}


def _at_targets(values: Tensor, target: Tensor, length: int, name: str) -> Tensor:
    whole = values.new_full((length, *values.shape[1:]), -1 if name == IDS else 0)
    whole[target] = values
    return whole
