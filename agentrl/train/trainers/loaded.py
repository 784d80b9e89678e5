"""A test that a trainer loaded what the folder's own weights mean.

The proof of an architecture (`proof`) uses a small random model. It can't find a weight that is mapped to the wrong
tensor, a missing one, a wrong tie, or a setting that only matters at the model's real sizes. So the run's own trainer
computes a small forest with the weights that it loaded, one tree at the end of the context, and plain transformers
computes the same paths as eager rows from the same folder. Where the whole model does not fit beside the trainer,
transformers' layers are read from the folder one at a time, so that at most one is in memory.

A model that sees is shown random images in them, and is compared at the beginning of the context alone.

Log-probabilities must agree: in float32 up to rounding, below it up to twice the error of transformers' own model in
that precision. Where they don't, the layers' outputs are compared, and the first that differs is named.

The result is cached by the folder's contents, the trainer's settings, the versions and our own code. Given up:
gradients (the small model's are compared), and models whose files are larger than `LARGEST`; those are only compared
with the engine.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import transformers
from torch import Tensor

from agentrl.common import custom_code
from agentrl.config import AlgoConfig, TrainerConfig
from agentrl.errors import ConfigError, InvalidWeights
from agentrl.models.loading import load_causal_lm, new_causal_lm, read_config
from agentrl.models.rope import fixed_angle_length
from agentrl.models.small import error_text
from agentrl.models.vision import load_lm, sees
from agentrl.models.vision_trials import RandomImages
from agentrl.rollout.engines.local.runner import ModelRunner
from agentrl.train.forest.forest import Forest
from agentrl.train.record import manifest
from agentrl.train.trainers import make_trainer
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.proof import TRIES, TRIES_IN_LOW_PRECISION, compute_once
from agentrl.train.trainers.proof.subjects import (
    ERROR_FACTOR,
    LOGP_BOUND,
    PACKAGE,
    PATHS_PER_BATCH,
    SUBJECTS,
    engine_logps,
)
from agentrl.train.trainers.reference import (
    LayerOutputs,
    compute_layer_outputs,
    named_layers,
    random_forest,
    root_mean_square,
)
from agentrl.train.trainers.torch_trainer.settings import TorchConfig

GPU_LOGP_BOUND = 1e-2
"""The bound in nats, in float32: GPU kernels round differently than eager attention, in every layer."""
LARGEST = 64 << 30
"""Bytes of weights that are still read at a run's start."""
LAYER_BOUND = 1e-3
"""The bound of a layer output's relative difference, averaged over tokens, in float32."""
LEVELS = (2, 0)
"""Branchings of the trees that are computed: a dozen paths, about a hundred tokens."""


class Computes(Protocol):
    """A source of forests' log-probabilities, such as a trainer."""

    def logprobs(self, forests: Sequence[Forest]) -> list[Tensor]:
        """Return each forest's log-probabilities of trained tokens, [T], 0 elsewhere."""


@runtime_checkable
class Layered(Protocol):
    """A trainer that returns its layers' outputs."""

    def layer_outputs(self, forest: Forest) -> list[Tensor]:
        """Each decoder layer's output for a forest, [T, d] each."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a comparison.

    Attributes:
        logp: the largest |difference of log-probability|, in nats; below float32 the root mean square of all.
        bound: of `logp`.
        dtype: the precision that the trainer computed in.
        layer: the first layer that differs, in words, where the bound is broken.
        own: by precision, the mean |error| of transformers' own model in it, in nats.
        not_compared: why nothing was compared.
        seconds: how long it took.
        cached: it was read from the cache.
    """

    logp: float = 0.0
    bound: float = LOGP_BOUND
    dtype: str = "float32"
    layer: str = ""
    own: dict[str, float] = field(default_factory=dict)
    not_compared: str = ""
    seconds: float = field(default=0.0, compare=False)
    cached: bool = field(default=False, compare=False)

    @property
    def passed(self) -> bool:
        """True where the loaded weights compute what the folder's do."""
        return not self.not_compared and self.logp <= self.bound

    def __str__(self) -> str:
        if self.not_compared:
            return f"the folder's weights were not compared: {self.not_compared}"
        if math.isnan(self.logp):
            return "the folder's weights, or the log-probabilities that they give, are no numbers (NaN)"
        how = "by up to" if self.dtype == "float32" else f"in {self.dtype} by (root mean square)"
        text = (
            f"with the folder's weights log-probabilities differ {how} {self.logp:.2g} nats (at most {self.bound:.2g})"
        )
        return f"{text}; {self.layer}" if self.layer else text


def require_loaded(
    trainer: Computes,
    folder: Path,
    what: str,
    config: TrainerConfig,
    device: str,
    precisions: Sequence[str] = (),
    held: Sequence[str] = (),
) -> Loaded:
    """Refuse a trainer whose loaded weights compute something else than transformers' model.

    Args:
        trainer: with the folder's weights, before any step.
        folder: a Hugging Face folder.
        what: how the user named the model.
        config: the trainer's settings.
        device: where transformers computes.
        precisions: in which transformers' own error is measured too, for `Loaded.own`.
        held: the form in which the trainer holds the weights, where it is another than the folder's.
    """
    settings = config.model_dump_json(exclude={"threads", "timeout", "async_save"})
    depends = (config.name, device, settings, *sorted(precisions), *held)
    found = compare_cached(lambda: compare(trainer, folder, config.dtype, device, precisions), folder, depends)
    if not found.passed and not found.not_compared:
        raise ConfigError(
            f"model={what!r}: trainer={config.name} computes something else than transformers with its weights: "
            f"{found}; trainer.proof=false skips this comparison"
        )
    return found


def compare_cached(compute: Callable[[], Loaded], folder: Path, depends: Sequence[str]) -> Loaded:
    """Compare, or read from the cache that it passed."""
    weights = weight_files(folder)
    if not weights:
        return Loaded(not_compared="there are no weights in the folder (*.safetensors, pytorch_model*.bin)")
    if (size := sum(part.stat().st_size for part in weights)) > LARGEST:
        return Loaded(not_compared=f"{size >> 30} GiB are over the limit of {LARGEST >> 30} GiB")
    return compute_once(_digest(folder, weights, depends), Loaded, compute, lambda found: found.passed)


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads a folder's weights from: safetensors, or PyTorch's where there are none."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def compare_folder(folder: Path, subject: str, family: str | None = None) -> Loaded:
    """Compare what a trainer or the local engine computes with a folder's weights, in float32 on a CPU."""

    def compute() -> Loaded:
        if subject == "local":
            return compare(_Engine(folder), folder, far=False)  # it counts positions from the first token on
        config = MegatronConfig(family=family) if subject == "megatron" else TorchConfig(device="cpu")
        trainer = make_trainer(folder, config, AlgoConfig())
        try:
            return compare(trainer, folder)
        finally:
            trainer.close()

    return compare_cached(compute, folder, (subject, family or ""))


class _Engine:
    """The local engine's model with a trainer's `logprobs`."""

    def __init__(self, folder: Path) -> None:
        context = fixed_angle_length(read_config(folder))
        self.runner = ModelRunner(folder, "cpu", "float32", PATHS_PER_BATCH, 1 << 30, context=context)

    def logprobs(self, forests: Sequence[Forest]) -> list[Tensor]:
        return [engine_logps(self.runner, forest) for forest in forests]


def compare(
    trainer: Computes,
    folder: Path,
    dtype: str = "float32",
    device: str = "cpu",
    precisions: Sequence[str] = (),
    *,
    far: bool = True,
) -> Loaded:
    """Compare what a trainer computes with eager rows of the folder's model; see the module's docstring.

    Args:
        trainer: with the folder's weights.
        folder: a Hugging Face folder.
        dtype: the precision that the trainer computes in.
        device: where transformers computes.
        precisions: see `require_loaded`.
        far: put one tree at the end of the context.
    """
    tries = TRIES if dtype == "float32" else TRIES_IN_LOW_PRECISION  # as in the proof: experts with equal scores
    for seed in range(tries):
        found = _compare(trainer, folder, dtype, device, precisions, far, seed)
        if found.passed or found.not_compared:
            break
    return found


def _compare(
    trainer: Computes, folder: Path, dtype: str, device: str, precisions: Sequence[str], far: bool, seed: int
) -> Loaded:
    config = read_config(folder)
    text, seen = config.get_text_config(), RandomImages(config) if sees(folder) else None
    longest = fixed_angle_length(text) or getattr(text, "max_position_embeddings", None)
    context = longest if far and seen is None else None
    forest = random_forest(random.Random(seed), text.vocab_size, LEVELS, context, seen)
    try:
        want = _rows(folder, forest, "float32", device)
        rough = {low: _rows(folder, forest, low, device) for low in {dtype, *precisions} - {"float32"}}
    except InvalidWeights:
        raise
    except Exception as error:  # of transformers' models: there are hundreds of kinds
        return Loaded(not_compared=f"transformers' eager attention can't compute its rows: {error_text(error)}")
    (logp,) = trainer.logprobs([forest])
    trained = forest.weight > 0
    own = {low: float((one.logp - want.logp)[trained].abs().mean()) for low, one in sorted(rough.items())}
    exact = LOGP_BOUND if device == "cpu" else GPU_LOGP_BOUND
    if dtype == "float32":
        found = Loaded(float((logp - want.logp).abs().max()), exact, dtype, own=own)
    else:
        bound = max(ERROR_FACTOR * root_mean_square(rough[dtype].logp, want.logp, forest), LOGP_BOUND)
        found = Loaded(root_mean_square(logp, want.logp, forest), bound, dtype, own=own)
    if found.passed:
        return found
    return replace(found, layer=_first_that_differs(trainer, forest, want, rough.get(dtype)))


def _first_that_differs(trainer: Computes, forest: Forest, want: LayerOutputs, rough: LayerOutputs | None) -> str:
    """The first layer that differs from transformers' by more than the bound."""
    if not isinstance(trainer, Layered) or not want.layers:
        return "its layers' outputs can't be compared"
    ours = trainer.layer_outputs(forest)
    if len(ours) != len(want.layers):
        return f"it has {len(ours)} layers, not {len(want.layers)}"
    for number, (found, wanted) in enumerate(zip(ours, want.layers, strict=True)):
        bound = (
            LAYER_BOUND
            if rough is None
            else max(ERROR_FACTOR * _relative_difference(rough.layers[number], wanted), LAYER_BOUND)
        )
        if not (difference := _relative_difference(found, wanted)) <= bound:
            which = f"layer {number} of {len(ours)} (counted from 0)" if number else "layer 0, or the embeddings"
            return f"the first that differs is {which}: a relative difference of {difference:.2g} (at most {bound:.2g})"
    return f"all {len(ours)} layers agree: what differs is the last norm or the head"


def _relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """The norm of the difference over the second's norm, averaged over tokens; [T, d] each."""
    return float(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).mean())


def _rows(folder: Path, forest: Forest, dtype: str, device: str) -> LayerOutputs:
    with _eager(folder, getattr(torch, dtype), device) as model:
        return compute_layer_outputs(model, forest, device)


@contextmanager
def _eager(folder: Path, dtype: torch.dtype, device: str) -> Iterator[Any]:
    """The folder's model with eager attention; where it does not fit, each layer is read when it is computed."""
    with torch.device("meta"):
        plan = new_causal_lm(read_config(folder), dtype, "eager")
    size = sum(parameter.numel() * parameter.element_size() for parameter in plan.parameters())
    if 1.5 * size <= free_memory(device):
        yield load_lm(folder, dtype, "eager").to(device).eval()
        return
    if sees(folder):
        raise MemoryError(f"{1.5 * size / (1 << 30):.1f} GiB, which a model that sees needs at once, are not free")
    with tempfile.TemporaryDirectory(prefix="agentrl-layers-") as scratch:
        placed = {"device_map": by_layer(plan, device), "offload_folder": scratch}
        yield load_causal_lm(folder, dtype, "eager", **placed).eval()


def by_layer(model: Any, device: str) -> dict[str, str]:
    """An accelerate device map: each layer is read from the disk when it is computed, the rest is on the device."""
    layers = dict.fromkeys((name for name, _ in named_layers(model)), "disk")
    above = {name.rpartition(".")[0] for name in layers}
    above |= {part for name in list(above) for part in _parents(name)}
    rest = {
        f"{name}.{child}".lstrip("."): device
        for name in above
        for child, _ in (*model.get_submodule(name).named_children(), *model.get_submodule(name)._parameters.items())
        if f"{name}.{child}".lstrip(".") not in above | set(layers)
    }
    return layers | rest


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts))]


def free_memory(device: str) -> int:
    """Bytes that are free where torch computes."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _digest(folder: Path, files: Sequence[Path], depends: Sequence[str]) -> str:
    digest = hashlib.blake2b((folder / "config.json").read_bytes(), digest_size=16)
    for word in (transformers.__version__, torch.__version__, custom_code.digest(folder), *depends):
        digest.update(word.encode())
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size} {manifest.digest(file)}".encode())
    models = ("loading", "tensors", "vision", "vision_families", "vision_trials")
    always = [f"models/{name}.py" for name in models]
    always += ["train/trainers/loaded.py", "train/trainers/reference.py", "train/forest/pictures.py"]
    for name in (*always, *SUBJECTS[depends[0]].sources):
        digest.update((PACKAGE / name).read_bytes())
    return digest.hexdigest()
