"""The Megatron trainer: the `Trainer` protocol over rank processes that compute with Megatron-core.

This process holds no weights and imports no Megatron. Of an exported Hugging Face folder, rank 0 writes the weights,
and this process the rest.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.errors import ConfigError, missing_extra
from agentrl.models.folders import export_folder, model_settings, read_side_files, write_side_files
from agentrl.models.scoring import score_settings
from agentrl.models.vision import sees
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers.megatron.layout import layout_of
from agentrl.train.trainers.megatron.models.family import read_config
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.ranks.trainer import RankTrainer, gpus_of


class MegatronTrainer(RankTrainer):
    """The trainer of `trainer=megatron`.

    Raises:
        ConfigError: the layout breaks a rule, or does not fit the model; the message names it.
        MissingExtra: Megatron-core is not installed.
    """

    config: MegatronConfig

    def __init__(
        self,
        path: str | Path,
        config: MegatronConfig | None = None,
        algo: AlgoConfig | None = None,
        *,
        total_steps: int = 1,
        seed: int = 0,
        first: Callable[[MegatronTrainer], None] | None = None,
        lora: LoraConfig | None = None,
    ) -> None:
        self.config = config or MegatronConfig()
        algorithm = self.make_algorithm(algo or AlgoConfig())
        self._require_images(Path(path), algorithm, lora)
        folder = Path(path)
        settings = read_config(folder) if sees(folder) else model_settings(folder)
        self.layout = layout_of(self.config, settings, gpus_of(self.config))
        require_megatron()
        self._side_files = read_side_files(Path(path))  # now: the folder may be gone by the time of an export
        head = algorithm.needs.head
        self._scores = {} if head is None else score_settings(Path(path), head)
        super().__init__(
            Path(path),
            self.config,
            algorithm,
            total_steps=total_steps,
            seed=seed,
            builder="agentrl.train.trainers.megatron.builder:MegatronBuilder",
            loaded="agentrl.train.trainers.megatron.redirected",
            apart=True,
            count=self.layout.ranks,
            timeout=self.config.timeout,
            layout=self.layout,
            together=self.layout.tensor,
            environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},  # collectives start in the order of the kernels
            first=None if first is None else functools.partial(first, self),
            lora=lora,
        )

    def _require_images(self, path: Path, algorithm: Algorithm, lora: LoraConfig | None) -> None:
        """Refuse adapters and score models of a model that sees."""
        if not sees(path):
            return
        if lora is not None and lora.active:
            raise ConfigError("lora.rank: adapters of vision-language models are not trained yet; train them whole")
        if algorithm.needs.head is not None:
            name = algorithm.config.name
            raise ConfigError(f"algo={name}: trainer=megatron makes no score model of one that sees images")

    def attempt(self, folder: Path, config: MegatronConfig, forest: Forest) -> tuple[Tensor, float]:
        """Compute a forest on the ranks with another model, in the same layout; their previous model is freed.

        Args:
            folder: the other model's Hugging Face folder.
            config: its settings, of the same layout.
            forest: to compute, and to take a step on.

        Returns:
            Its trained tokens' log-probabilities [T], and the norm of its gradient.
        """
        config = config.model_copy(update={"freeze": (), "lr_factors": {}, "vision": "full"})  # of the run's model
        self.build(folder, config, make_algorithm(AlgoConfig()), 1)
        (logp,) = self.logprobs([forest])
        norm = self.step([forest])["grad_norm"]
        self.version = 0
        return logp, norm

    def make_algorithm(self, algo: AlgoConfig) -> Algorithm:
        """Build a phase's algorithm, or raise for what only the torch trainer can do."""
        algorithm = super().make_algorithm(algo)
        if algorithm.needs.critic and algorithm.critic_config.value_view:
            raise ConfigError(
                "algo.value_view: trainer=megatron computes values on the ranks that hold hidden states, which get "
                "nothing else; use trainer=torch or trainer=fsdp"
            )
        if algo.reference_decay is not None and self.config.dtype == "bfloat16":
            raise ConfigError(
                "algo.reference_decay: the reference is kept in trainer.dtype=bfloat16, whose rounding would swallow "
                "the average's small changes; use trainer.dtype=float32, or trainer=torch"
            )
        return algorithm

    def export(self, path: Path) -> None:
        """Write a Hugging Face folder: the weights, and whatever else the source folder held when it was read.

        In it there is another one, `averaged`, where an average is kept (`trainer.average_decay`).
        """
        with export_folder(Path(path).absolute(), self._side_files) as folder:
            self._write(folder, "weights")
            if self._lora is not None:
                self._write_adapter(folder / "adapter")
            if self.config.average_decay is not None:
                with export_folder(folder / "averaged", self._side_files) as inner:
                    self._write(inner, "averaged_weights")

    def _write_adapter(self, folder: Path) -> None:
        if self.ranks.call("write_adapter", str(folder)):
            (folder / "base").mkdir()
            self._write(folder / "base", "base_weights")
            write_side_files(self._side_files, folder / "base")

    def _write(self, folder: Path, method: str) -> None:
        """Have rank 0 write what `method` yields, and write the model's configuration."""
        dtypes = self.ranks.call("write", str(folder), method)
        settings = json.loads(self._side_files["config.json"])
        for stale in ("torch_dtype", "quantization_config"):  # the written weights are not quantised
            settings.pop(stale, None)
        settings["dtype"] = max(dtypes, key=lambda name: dtypes[name])
        (folder / "config.json").write_text(json.dumps(settings | self._scores, indent=2))

    def close(self) -> None:
        """End the ranks; a checkpoint that is still being written is finished first."""
        if self.ranks.alive and self.config.async_save:
            self.ranks.call("finish_saving")
        super().close()


def require_megatron() -> None:
    """Raise MissingExtra where Megatron-core is not installed."""
    import importlib.util

    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        raise missing_extra("megatron-core", "megatron")
