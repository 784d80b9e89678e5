"""Data as forests of their tokens: what data have in common from their first token on is computed once.

A datum's targets need not be the tokens that follow, and a position may have several. So a forest has no trained tokens
of its own: what is read are (predictor, target) rows, each distinct one once, and each datum knows the rows of its
targets. Every datum keeps its own weights and advantages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.errors import InvalidInput
from agentrl.train.forest.forest import Forest, Rows
from agentrl.train.server.losses import TARGETS
from agentrl.train.server.messages import Datum
from agentrl.train.trainers.reference import bare_forest

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedPass:
    """Data that are computed together.

    Attributes:
        forest: of their tokens.
        rows: the distinct (predictor, target) pairs.
        places: of each datum, by its index in the request: the rows of its targets, flattened.
    """

    forest: Forest
    rows: Rows
    places: dict[int, Tensor]


def check_data(data: Sequence[Datum], inputs: Sequence[str], *, wide: bool, vocabulary: int, longest: int) -> None:
    """Refuse data that a loss can't be computed of."""
    if not data:
        raise InvalidInput("data is empty")
    for index, datum in enumerate(data):
        where = f"data[{index}]"
        if not 0 < len(datum.tokens) <= longest:
            raise InvalidInput(f"{where}.model_input has {len(datum.tokens)} tokens; 1 to {longest} are computed here")
        wanted = {TARGETS, *inputs}
        if missing := sorted(wanted - datum.inputs.keys()):
            raise InvalidInput(f"{where}.loss_fn_inputs lacks {missing[0]!r}")
        if unknown := sorted(datum.inputs.keys() - wanted):
            raise InvalidInput(
                f"{where}.loss_fn_inputs has {unknown[0]!r}, which this loss does not read; it reads "
                f"{', '.join(sorted(wanted))}"
            )
        targets = datum.inputs[TARGETS]
        if targets.dtype.kind != "i" or targets.ndim > 1 + wide:
            raise InvalidInput(f"{where}.loss_fn_inputs[{TARGETS!r}] is no int64 array of {'1 or 2' if wide else 1}-D")
        _check_ids(datum.tokens, vocabulary, f"{where}.model_input")
        _check_ids(targets, vocabulary, f"{where}.loss_fn_inputs[{TARGETS!r}]")
        for name in inputs:
            values = datum.inputs[name]
            if values.shape != targets.shape:
                shapes = f"{list(values.shape)}, and its targets {list(targets.shape)}"
                raise InvalidInput(f"{where}.loss_fn_inputs[{name!r}] has shape {shapes}")
            if not np.isfinite(values).all():
                raise InvalidInput(f"{where}.loss_fn_inputs[{name!r}] has a value that is not finite")


def _check_ids(ids: Index, vocabulary: int, where: str) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary):
        raise InvalidInput(f"{where} has a token id outside 0 to {vocabulary - 1}")


def shared_passes(data: Sequence[Datum], budget: int) -> Iterator[SharedPass]:
    """Yield forests of at most `budget` tokens, unless one datum has more; they depend on the data alone.

    In lexicographic order of their tokens, data are the leaves of their tree in depth-first order.
    """
    order = sorted(range(len(data)), key=lambda index: (data[index].tokens.tolist(), index))
    held: list[int] = []
    size, before = 0, np.empty(0, np.int64)
    for index in order:
        tokens = data[index].tokens
        new = len(tokens) - common_prefix(before, tokens)
        if held and size + new > budget:
            yield _merge(data, held)
            held, size, new = [], 0, len(tokens)
        held.append(index)
        size, before = size + new, tokens
    if held:
        yield _merge(data, held)


def common_prefix(one: Index, other: Index) -> int:
    """Return how many first tokens are equal."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if differs.size else length


def _merge(data: Sequence[Datum], order: Sequence[int]) -> SharedPass:
    tokens: list[Index] = []
    ends: list[int] = []
    positions: list[Index] = []
    parents: list[Index] = []
    predictors: list[Index] = []
    path, before, size = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for index in order:
        own = data[index].tokens
        shared = common_prefix(before, own)
        for left in path[shared:].tolist():
            ends[left] = size
        new = np.arange(size, size + len(own) - shared)
        path = np.concatenate((path[:shared], new))
        tokens.append(own[shared:])
        positions.append(np.arange(shared, len(own)))
        parents.append(path[shared - 1 : -1] if shared else np.concatenate(([-1], new[:-1]))[: len(new)])
        ends += [0] * len(new)
        predictors.append(path)
        size, before = size + len(new), own
    for left in path.tolist():
        ends[left] = size
    columns = (np.concatenate(tokens), np.concatenate(positions), np.asarray(ends), np.concatenate(parents))
    forest = bare_forest(*(torch.from_numpy(column.astype(np.int64)) for column in columns))
    return _with_rows(forest, data, order, predictors)


def _with_rows(forest: Forest, data: Sequence[Datum], order: Sequence[int], predictors: Sequence[Index]) -> SharedPass:
    pairs = []
    for index, path in zip(order, predictors, strict=True):
        targets = data[index].inputs[TARGETS]
        each = np.repeat(path, targets.size // len(path))
        pairs.append(np.stack((each, targets.reshape(-1).astype(np.int64)), 1))
    distinct, inverse = np.unique(np.concatenate(pairs), axis=0, return_inverse=True)
    places, at = {}, 0
    flat = torch.from_numpy(np.ascontiguousarray(inverse.reshape(-1)))
    for index, own in zip(order, pairs, strict=True):
        places[index] = flat[at : at + len(own)]
        at += len(own)
    predictor, target = (torch.from_numpy(np.ascontiguousarray(distinct[:, column])) for column in (0, 1))
    ones, none = torch.ones(len(distinct)), torch.zeros(len(distinct), dtype=torch.int64)
    rows = Rows(predictor, predictor, target, ones, ones, ones, ones - 1, none - 1, none, none, none)
    return SharedPass(forest, rows, places)
