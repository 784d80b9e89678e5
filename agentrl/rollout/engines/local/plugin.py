"""`engine=local` as a plug-in: torch in this process or in one of its own.

`agentrl.rollout.engines.local.engine` is the engine, `agentrl.rollout.engines.local.process_engine` the one in a
process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from agentrl.common import cores
from agentrl.config import EngineConfig
from agentrl.errors import ConfigError, MissingExtra, require_extra
from agentrl.rollout.engines.plugin import EnginePlugin
from agentrl.types import Engine, Tokenizer


class LocalConfig(EngineConfig):
    """The settings of `engine=local`."""

    name: str = "local"
    """The engine's name."""
    process: Literal["auto", "own", "shared"] = "auto"
    """The process that it computes in: in the run's process (shared) or in one of its own; auto: own where training
    goes on while it generates (rollout.staleness above 0), and where a run on two cores or more plays 2,048 sessions or
    more with a small model that sees no images; else shared."""
    kernel: Literal["auto", "torch"] = "auto"
    """By what it computes. torch: transformers' modules; auto: on a CPU in float32 a small Llama, Mistral, Qwen 2 or
    Qwen 3 by C, which the system's compiler compiles once and which is several times as fast; else torch."""
    proof: bool = True
    """Before generating, test on a small model of the architecture that it computes what transformers computes."""


class LocalPlugin(EnginePlugin):
    """The engine, in this process unless its settings say otherwise."""

    settings = LocalConfig
    records_supports = True

    def share_cores(self, processes: int, folder: Path) -> int:
        """Return its share, of a small model too: the kernel's threads wait asleep, and torch takes one for it."""
        return cores.share(processes)

    def records_penalties(self, config: EngineConfig) -> bool:
        """Return True: its sampler counts."""
        return True

    def takes_images(self, config: EngineConfig, folder: Path) -> bool:
        return True

    def keeps_to_calls(self, config: EngineConfig) -> bool:
        """Return True, with the extra `grammars`."""
        return True

    def in_process(self, config: EngineConfig) -> bool:
        return not (isinstance(config, LocalConfig) and config.process == "own")

    def transport(self, config: EngineConfig) -> str:
        return "inproc" if self.in_process(config) else "disk"

    def takes(self, config: EngineConfig) -> frozenset[str]:
        return frozenset({"adapter"})

    def beside_trainer(self, config: LocalConfig) -> LocalConfig:
        """Return settings for a process of its own, where `engine.process` leaves it open."""
        return config.model_copy(update={"process": "own"}) if config.process == "auto" else config

    def make(self, path: Path, config: EngineConfig, tokenizer: Tokenizer | None = None) -> Engine:
        """Build a `LocalEngine`, or a `ProcessEngine`, whose process has the folder's own tokenizer."""
        with require_extra("train"):
            from agentrl.rollout.engines.local.engine import LocalEngine
        if self.in_process(config):
            return LocalEngine(path, config, tokenizer)
        from agentrl.rollout.engines.local.process_engine import ProcessEngine

        return ProcessEngine(path, config)

    def check(self, config: LocalConfig, urls: Mapping[str, str]) -> None:
        for setting, url in urls.items():
            raise ConfigError(f"{setting}={url!r} is a server's address, and engine=local has none; use engine=sglang")
        if config.device == "cuda":
            from agentrl.models.devices import torch_device

            torch_device(config.device, "engine.device")

    def begin(self, config: EngineConfig) -> None:
        """Compile the kernel while libraries and the model load."""
        from agentrl.rollout.engines.local.kernel_build import begin_compiling

        if isinstance(config, LocalConfig) and config.kernel == "auto" and config.device != "cuda":
            begin_compiling()

    def kernel(self, config: LocalConfig) -> str:
        """Return the compiled kernel's name, or torch where that is chosen or there is no compiler."""
        from agentrl.rollout.engines.local.kernel_build import name

        try:
            return name() if config.kernel == "auto" else "torch"
        except (MissingExtra, OSError):
            return "torch"

    def proves(self, config: LocalConfig) -> bool:
        return config.proof


ENGINE = LocalPlugin()
