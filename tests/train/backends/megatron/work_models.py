"""What workers do for `test_models` and `test_weights`: functions of a rank, in a world that is set up."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors.torch import load_file
from torch import Tensor

from agentrl.errors import AgentRLError
from agentrl.train.trainers.megatron import models
from agentrl.train.trainers.megatron.check import MegatronComparison, check
from agentrl.train.trainers.megatron.models.reader import TensorReader


def built(
    folder: str, settings: dict[str, Any] | None = None, name: str | None = None
) -> tuple[list[Any], models.Family]:
    """This rank's chunks of a folder's model, filled; of the family called `name`, or else its own."""
    hf = models.read_config(folder, name)
    family = models.family_of(hf, name)
    chunks = models.build(family, hf, **(settings or {}))
    models.load(chunks, folder, family)
    return chunks, family


def logits(
    folder: str,
    token_ids: Tensor,
    table: Tensor | None,
    settings: dict[str, Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """[T, padded vocabulary], gathered over tensor-parallel ranks; a pipeline must not be."""
    (model,), _ = built(folder, settings, name)
    with torch.no_grad():
        out: Tensor = model.eval()(token_ids[None], None, table, runtime_gather_output=True)
    return out[0]


def round_trip(folder: str, settings: dict[str, Any] | None = None, to: int | None = None) -> list[str]:
    """The names of tensors that come out otherwise than the file has them, or too early, late, or not at all."""
    chunks, family = built(folder, settings)
    written = load_file(Path(folder) / "model.safetensors")
    out = dict(models.export(chunks, family, to=to))
    if to is not None and dist.get_rank() != to:
        return [f"{name} where nothing should be" for name in out]
    return [name for name in {**written, **out} if not _same(written.get(name), out.get(name))]


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)


def family_name(folder: str, name: str | None = None) -> str:
    """What a folder's family is called."""
    return models.family_of(models.read_config(folder, name), name).name


def refusal(folder: str, name: str | None = None) -> tuple[str, str]:
    """The error that building a folder's model ends with: its class and its words."""
    try:
        hf = models.read_config(folder, name)
        models.build(models.family_of(hf, name), hf)
    except AgentRLError as error:
        return type(error).__name__, str(error)
    return "", "nothing was refused"


def loading_refusal(folder: str) -> tuple[str, str]:
    """The error that loading a folder ends with: its class and its words."""
    try:
        built(folder)
    except AgentRLError as error:
        return type(error).__name__, str(error)
    return "", "nothing was refused"


def checked(folder: str, family: str | None) -> MegatronComparison:
    """What `check` finds, which makes groups of its own: no job can follow."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return check(folder, family)


def half_precision(folder: str) -> list[str]:
    """Names whose export in bfloat16 is not the file's float32 rounded; correction biases stay as they are."""
    chunks, family = built(folder)
    written = load_file(Path(folder) / "model.safetensors")
    wanted = {n: t if n.endswith("correction_bias") else t.bfloat16() for n, t in written.items()}
    out = dict(models.export(chunks, family, dtype=torch.bfloat16))
    return [name for name in {**wanted, **out} if not _same(wanted.get(name), out.get(name))]


def exported(folder: str) -> dict[str, Tensor]:
    """Everything, by name."""
    chunks, family = built(folder)
    return {name: tensor.clone() for name, tensor in models.export(chunks, family)}


def gradients_by_name(folder: str) -> list[str]:
    """Names whose export, reading twice the parameter, is not twice the file's; of those that are exported."""
    chunks, family = built(folder)
    written = load_file(Path(folder) / "model.safetensors")
    out = dict(models.export(chunks, family, read=lambda p: 2 * p.detach() if p.dim() > 1 else None))
    assert all(tensor.dim() > 1 for tensor in out.values())
    return [name for name, tensor in out.items() if not _same(2 * written[name], tensor)]


def peaks(folder: str) -> dict[str, int]:
    """Bytes: the model's, its largest parameter's, and the most that lay beside the model in loading and exporting."""
    hf = models.read_config(folder)
    family = models.family_of(hf)
    chunks = models.build(family, hf)
    parameters = [p for chunk in chunks for p in chunk.parameters()]
    own = {p.untyped_storage().data_ptr() for p in parameters}
    gc.collect()
    gc.freeze()  # only what comes into being from here on is looked at
    try:
        loading = _most_while(lambda: models.load(chunks, folder, family), own)
        exporting = 0
        for _ in models.export(chunks, family):
            exporting = max(exporting, _new_bytes(own))
    finally:
        gc.unfreeze()
    sizes = [p.nbytes for p in parameters]
    return {"model": sum(sizes), "largest": max(sizes), "loading": loading, "exporting": exporting}


def _most_while(do: Callable[[], None], own: Collection[int]) -> int:
    """The most bytes of new tensors that there were when a reader had just answered, while `do` ran."""
    original, most = TensorReader.read, 0

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal most
        answer = original(*args, **kwargs)
        mapped = answer.untyped_storage().data_ptr()  # of the whole file, of which only the slice is read
        most = max(most, answer.nbytes + _new_bytes({*own, mapped}))
        return answer

    TensorReader.read = watched  # type: ignore[method-assign]
    try:
        do()
    finally:
        TensorReader.read = original  # type: ignore[method-assign]
    return most


def _new_bytes(own: Collection[int] = ()) -> int:
    """Of all tensors since `gc.freeze`, the storages that are not `own`."""
    gc.collect()
    storages = [thing.untyped_storage() for thing in gc.get_objects() if type(thing) is Tensor]
    return sum({s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in own}.values())
