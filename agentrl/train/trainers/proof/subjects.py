"""The subjects of a proof: the trainers and the local engine, on a small random model of an architecture.

The torch trainer computes log-probabilities and gradient of a forest. The Megatron trainer does so on the run's ranks
in the run's layout, or without a run on one rank, and returns the gradient's norm only. The local engine computes the
same paths, the first half of each as a prompt, the rest token by token.

In float32 the difference from transformers' eager rows may be rounding only. Below float32 it may be at most
`ERROR_FACTOR` times the error of transformers' own eager rows in that precision. That finds a cast in the wrong place
(positions, a softmax, the logits), and accepts ordinary rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import agentrl
from agentrl.attachments import images
from agentrl.config import AlgoConfig
from agentrl.models.vision import load_lm, sees
from agentrl.rollout.engines.local.images import FIRST, SeenPrompt
from agentrl.rollout.engines.local.runner import QUANTUM, ModelRunner, RowSegment
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.pictures import images_along
from agentrl.train.trainers.megatron.settings import MegatronConfig, MoeConfig
from agentrl.train.trainers.reference import RowResults, gradient_distance, paths_to_leaves, root_mean_square
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

if TYPE_CHECKING:
    from agentrl.train.trainers.megatron.trainer import MegatronTrainer

LOGP_BOUND, GRADIENT_BOUND = 1e-3, 1e-2
"""Bounds in nats, and relative to the gradient's norm. Rounding gives 1e-5, what forests can't express 0.1 and more."""
NORM_BOUND = 1e-3
"""Of the relative difference of gradient norms, in float32 on a CPU; ranks return only the norm. Correct ones differ by
at most 4e-6; one tensor's gradient that was not summed over ranks changed the norm by 1.3e-3 to 4.7e-3."""
ERROR_FACTOR = 2.0
"""In a lower precision: our error may be this many times transformers' own. Measured: 0.7 to 1.2."""
PACKAGE = Path(agentrl.__file__).parent
PATHS_PER_BATCH = 8
"""Paths that the engine computes in one batch."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a test.

    Attributes:
        logp: the largest |difference of log-probability|, in nats; below float32 the root mean square of all.
        gradient: the norm of the gradients' difference, relative to the gradient's norm; None for an engine.
        fault: why there are no numbers: the error that was raised.
        untested: why it could not be tested.
        dtype: the precision that ours computed in; transformers' rows are in float32.
        logp_bound: of `logp`; below float32 it follows from transformers' own error.
        gradient_bound: of `gradient`.
        seconds: how long it took.
        cached: it was read from the cache.
    """

    logp: float = 0.0
    gradient: float | None = None
    fault: str = ""
    untested: str = ""
    dtype: str = "float32"
    logp_bound: float = LOGP_BOUND
    gradient_bound: float = GRADIENT_BOUND
    seconds: float = field(default=0.0, compare=False)
    cached: bool = field(default=False, compare=False)

    @property
    def passed(self) -> bool:
        """True where the subject computes what transformers computes."""
        if self.untested or self.fault:
            return False
        return self.logp <= self.logp_bound and (self.gradient is None or self.gradient <= self.gradient_bound)

    def __str__(self) -> str:
        if self.untested:
            return f"it could not be tested: {self.untested}"
        if self.fault:
            return self.fault
        exact = self.dtype == "float32"
        logp = f"log-probabilities differ by {'up to ' if exact else ''}{self.logp:.2g} nats"
        logp += f" (at most {self.logp_bound:.2g})" if exact else f" (root mean square, at most {self.logp_bound:.2g})"
        if self.gradient is not None:
            logp += f", gradients by a relative {self.gradient:.2g} (at most {self.gradient_bound:.2g})"
        return logp if exact else f"in {self.dtype} {logp}: twice transformers' own error is allowed"


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """A small model to be computed.

    Attributes:
        folder: its Hugging Face folder, in one that is the trial's own.
        forest: to compute.
        want: the forest as rows in float32.
        device: where to compute.
        family: the user's, for Megatron.
        dtype: the precision to compute in.
        own: below float32, the error of transformers' own rows: log-probabilities and gradient.
        ranks: the run's, for Megatron; None starts one rank.
    """

    folder: Path
    forest: Forest
    want: RowResults
    device: str
    family: str | None
    dtype: str
    own: tuple[float, float] | None
    ranks: MegatronTrainer | None = None

    def proof(self, logp: Tensor, gradient: float | None = None, bound: float = GRADIENT_BOUND) -> Proof:
        """The result, from the log-probabilities [T] and the gradient's difference, which in float32 has this bound."""
        if self.own is None:
            return Proof(float((logp - self.want.logp).abs().max()), gradient, gradient_bound=bound)
        error, (own_logp, own_gradient) = root_mean_square(logp, self.want.logp, self.forest), self.own
        return Proof(
            error,
            gradient,
            dtype=self.dtype,
            logp_bound=max(ERROR_FACTOR * own_logp, LOGP_BOUND),
            gradient_bound=max(ERROR_FACTOR * own_gradient, GRADIENT_BOUND),
        )


def _by_trainer(trial: ModelTrial) -> Proof:
    config = TorchConfig(device=trial.device, dtype=trial.dtype)  # type: ignore[arg-type]
    trainer = TorchTrainer(trial.folder, config, AlgoConfig())
    (logp,) = trainer.logprobs([trial.forest])
    trainer.backward(trainer.prepare(trial.forest))
    gradients = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    if sees(trial.folder) and (fault := _read_export(trainer, trial.folder.parent / "export")):
        return Proof(fault=fault)
    return trial.proof(logp, gradient_distance(gradients, trial.want.gradients))


def _read_export(trainer: TorchTrainer, folder: Path) -> str:
    """Write a trainer's model and load it again; returns what is not the same, as a clause."""
    trainer.export(folder)
    found, wanted = load_lm(folder, torch.float32, "eager").state_dict(), trainer.model.state_dict()
    wrong = sorted(found.keys() ^ wanted.keys())
    wrong += [name for name in wanted if name in found and not torch.equal(found[name], wanted[name].cpu())]
    return f"its export is loaded again with other weights: {', '.join(wrong[:3])}" if wrong else ""


def _by_megatron(trial: ModelTrial) -> Proof:
    """Prove on the run's ranks, or on one rank in a process of its own."""
    from agentrl.train.trainers.megatron.trainer import MegatronTrainer

    if (settings := settings_on_ranks(trial.ranks, trial.dtype)) is not None and trial.ranks is not None:
        logp, norm = trial.ranks.attempt(trial.folder, settings, trial.forest)
    else:
        config = MegatronConfig(ranks=1, dtype=trial.dtype, family=trial.family)  # type: ignore[arg-type]
        trainer = MegatronTrainer(trial.folder, config, AlgoConfig())
        try:
            (logp,) = trainer.logprobs([trial.forest])
            norm = trainer.step([trial.forest])["grad_norm"]
        finally:
            trainer.close()
    want = float(sum(value.double().square().sum() for value in trial.want.gradients.values()) ** 0.5)
    return trial.proof(logp, abs(norm - want) / want, NORM_BOUND if trial.device == "cpu" else GRADIENT_BOUND)


def _by_engine(trial: ModelTrial) -> Proof:
    """Prove in batches of paths: the first half of each as a prompt, the rest token by token; by torch and compiled."""
    runner = ModelRunner(trial.folder, trial.device, trial.dtype, PATHS_PER_BATCH, 1 << 30)
    found = trial.proof(engine_logps(runner, trial.forest))
    if runner.kernel is None or not found.passed:
        return found
    runner.kernel = None
    return trial.proof(engine_logps(runner, trial.forest))


def engine_logps(runner: ModelRunner, forest: Forest) -> Tensor:
    """The log-probabilities of a forest's trained tokens, [T], 0 elsewhere, as the local engine computes them."""
    logp = torch.zeros(len(forest))
    leaves = paths_to_leaves(forest)
    for start in range(0, len(leaves), runner.arena.rows):
        paths = leaves[start : start + runner.arena.rows]
        prompts = [_see(runner, forest, path) for path in paths]
        for path, logits in zip(paths, _engine_logits(runner, prompts), strict=True):
            along = torch.log_softmax(logits[:-1].cpu(), -1)
            logp[path[1:]] = along.gather(1, forest.token_ids[path][1:, None])[:, 0]
    logp[forest.weight == 0] = 0.0
    return logp


def _see(runner: ModelRunner, forest: Forest, path: Tensor) -> SeenPrompt:
    """A path as the engine's prompt."""
    ids, shown = forest.token_ids[path].tolist(), images_along(forest.fields, forest.token_ids, path)
    if shown is None or runner.images is None:
        return SeenPrompt(ids, (), None)
    return runner.images.see(ids, [(0, images.NAME, shown.pack())])


def _engine_logits(runner: ModelRunner, paths: list[SeenPrompt]) -> list[Tensor]:
    """The logits at every token of some paths, [length, vocabulary] each."""
    segments, keep, axes = list[RowSegment](), list[int](), list[tuple[int, NDArray[np.int64]]]()
    ahead = list[tuple[int, NDArray[np.int64]]]()
    shown = [1 + max((at for at, token in enumerate(path.ids) if token >= FIRST), default=0) for path in paths]
    halves = [max(len(path.ids) // 2 + 1, images) for path, images in zip(paths, shown, strict=True)]
    for row, (path, half) in enumerate(zip(paths, halves, strict=True)):
        for start in range(0, half, QUANTUM):
            end = min(start + QUANTUM, half)
            at = len(segments) * QUANTUM
            keep += range(at, at + end - start)
            segments.append(RowSegment(row, start, path.ids[start:end]))
            axes += path.placed(at, start, end)
            ahead += path.ahead(at, start, end)
    found = list(torch.split(runner.step(0, [], segments, QUANTUM, keep, axes=axes, ahead=ahead), halves))
    for place in range(max(len(path.ids) for path in paths)):
        rows = [row for row, path in enumerate(paths) if halves[row] <= place < len(path.ids)]
        if rows:
            axes = [one for row in rows for one in paths[row].placed(row, place, place + 1)]
            tokens = [(row, place, paths[row].ids[place]) for row in rows]
            logits = runner.step(len(paths), tokens, [], QUANTUM, rows, axes=axes)
            for row, one in zip(rows, logits, strict=True):
                found[row] = torch.cat((found[row], one[None]))
    return found


def settings_on_ranks(ranks: MegatronTrainer | None, dtype: str) -> MegatronConfig | None:
    """A small model's settings on a run's ranks: the run's own, without dropped tokens and router losses."""
    if ranks is None:
        return None
    moe = MoeConfig(dispatcher=ranks.config.moe.dispatcher)
    plain = {"optimizer": "adam", "offload_optimizer": False, "async_save": False, "reference": "switch", "moe": moe}
    return ranks.config.model_copy(update={**plain, "ranks": ranks.layout.ranks, "dtype": dtype})


@dataclass(frozen=True, slots=True)
class _Subject:
    """A trainer or engine that is tested.

    Attributes:
        compute: runs the test.
        what: the input of a model's layers, for messages.
        refusal: how the error message goes on after "can't be".
        instead: what to use for a model that fails the test.
        anyway: how to skip the test.
        sources: our own files that the result depends on, under the package.
    """

    compute: Callable[[ModelTrial], Proof]
    what: str
    refusal: str
    instead: str
    anyway: str
    sources: tuple[str, ...]


def _below(*folders: str) -> tuple[str, ...]:
    """The files of some folders of trainers."""
    files = (file for name in folders for file in sorted((PACKAGE / "train" / "trainers" / name).rglob("*.py")))
    return tuple(str(file.relative_to(PACKAGE)) for file in files)


ALWAYS = (
    "models/small.py",
    "models/loading.py",
    "models/tensors.py",
    "models/mixers.py",
    "models/vision.py",
    "models/vision_families.py",
    "models/vision_trials.py",
    *_below("proof"),
    "train/trainers/reference.py",
    "train/forest/distribution.py",
    "train/forest/pictures.py",
)
SHARED = tuple(f"train/trainers/{name}.py" for name in ("attention", "flex", "head"))


TORCH = (*SHARED, "train/trainers/torch_trainer/trainer.py", "train/trainers/state_schedule.py")
MEGATRON = SHARED + _below("megatron", "ranks")
SUBJECTS = {
    "torch": _Subject(
        _by_trainer,
        "forest",
        "trained by trainer=torch: a forest must give what its paths give as rows",
        "",
        "trainer.proof=false skips this test",
        TORCH,
    ),
    "fsdp": _Subject(
        _by_trainer,
        "forest",
        "trained by trainer=fsdp: a forest must give what its paths give as rows",
        "",
        "trainer.proof=false skips this test",
        TORCH + _below("fsdp", "ranks"),
    ),
    "megatron": _Subject(
        _by_megatron,
        "forest",
        "trained by trainer=megatron: its family must compute what transformers computes",
        "; trainer=torch trains more models",
        "trainer.proof=false skips this test",
        MEGATRON,
    ),
    "local": _Subject(
        _by_engine,
        "flat step",
        "run by engine=local: a path must be computed as transformers computes it",
        "; engine=sglang and engine=vllm run more models",
        "engine.proof=false skips this test",
        tuple(f"rollout/engines/local/{name}.py" for name in ("runner", "flat", "parts", "arena", "states", "images")),
    ),
}
