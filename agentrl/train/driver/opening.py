"""The parts that every run opens: its folder, its store, its model, and a way to stop it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentrl import faults, logs, tracing, watchdog
from agentrl.common import cores, custom_code
from agentrl.common.foreign_errors import disk_failure
from agentrl.config import MODEL, START, RunConfig
from agentrl.config.run import WatchdogConfig
from agentrl.config.secrets import secret_values
from agentrl.errors import AgentRLError, ConfigError, StoreError
from agentrl.models.folders import pin
from agentrl.models.registry import model_folder
from agentrl.rollout.engines.folder import ModelFacts
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import Algorithm
from agentrl.train.display.console import Display
from agentrl.train.driver import base_model, interrupt, setup
from agentrl.train.driver.loop import Loop
from agentrl.train.plan.model_checks import loads_meanwhile, prove_architecture, require_one_tokenizer
from agentrl.train.plan.trainer_checks import late_rates
from agentrl.train.record import manifest
from agentrl.train.record.files import disk_error, run_path
from agentrl.train.record.remote_copy import Uploads
from agentrl.train.record.run_folder import RunFolder
from agentrl.types import MAIN

ENDING = 10.0
"""Seconds beyond `grace` after which a run that hangs is ended, where SIGTERM did not end it."""


@dataclass(frozen=True)
class OpenRun:
    """A run that trains, and what its stages open, which it closes in reverse order (`open_run`).

    Attributes:
        config: its settings.
        folder: its own, locked.
        store: its sessions.
        display: where progress is shown.
        algorithms: those of the policies that learn, by name.
        opened: closes what the stages open; where one fails, what those before it opened.
    """

    config: RunConfig
    folder: RunFolder
    store: Store
    display: Display
    algorithms: Mapping[str, Algorithm]
    opened: AsyncExitStack

    @property
    def algorithm(self) -> Algorithm:
        """The main policy's algorithm."""
        return self.algorithms[MAIN]

    async def load_model(self, build_tiny: Callable[[Path, int], Awaitable[Path]]) -> Path:
        """Return the folder of the model that the run begins with, once its architecture is proved; see `_own_model`.

        Raises:
            ConfigError: the trainer or the engine computes it differently than transformers, or a critic would read
                other policies' tokens that are not its own.
        """
        with self.display.part("loading the model"):
            base = await self._own_model(build_tiny)
        if self.config.model.trust_remote_code:
            custom_code.allow(base)
        learners, policies, most = self.config.learners, self.config.policies, self.config.rollout.top_k
        if most is not None and most >= (size := ModelFacts.read(base).vocab_size):
            self.display.warn(f"rollout.top_k={most} leaves no token out: the model has {size}")
        require_one_tokenizer(self.algorithms, self.config.model.name, policies, base)
        later = loads_meanwhile(self.config.data, self.config.engine)
        prove_architecture(learners[MAIN], policies, base, self.display, trains=True, later=later)
        return base

    async def _own_model(self, build_tiny: Callable[[Path, int], Awaitable[Path]]) -> Path:
        """The run's own copy of the model that it began with: engines load it, also when they restart.

        The folder given as `model=` and the run's checkpoints may be deleted at any time; this copy stays. Where it is
        damaged, it is replaced by the checkpoint that the run resumes from. `build_tiny` makes the tiny model, where
        that is asked for, in a folder with a seed.
        """
        config, folder = self.config, self.folder
        own = folder.path.resolve() / "model"
        fault = manifest.damage(own) if own.exists() else ""
        if fault is None:
            return own
        if folder.checkpoint:
            policies = {name: policy for name, policy in config.policies.items() if policy.name == MODEL}
            if frozen := [name for name, policy in policies.items() if policy.model.name == START]:
                raise ConfigError(f"policies.{frozen[0]}.model=start: {own} has been damaged or removed")
            if config.lora.active and not config.warm_start.steps:
                raise ConfigError(
                    f"{own} has been damaged or removed: the adapter of {folder.checkpoint} is of this base"
                )
            if fault:
                self.display.warn(f"{own}: {fault}; replaced by a copy of {folder.checkpoint.name}")
            pin(folder.checkpoint, own)
        elif config.rerun:
            pin(Path(config.rerun) / "model", own)
        elif config.model.name == setup.TINY:
            await build_tiny(own, config.seed)
        else:
            pin(model_folder(config.model, scores=self.algorithm.needs.head is not None), own)
        if config.lora.quantize != "none":
            await asyncio.to_thread(self._quantise, own)
        manifest.write(own)
        if folder.checkpoint:
            folder.seals.replace_model()
        return own

    def _quantise(self, own: Path) -> None:
        """Have the run's model, which engines load too, be the one that a base in four bits is."""
        from agentrl.train.trainers.lora_quantised import quantise_folder

        if self.config.model.trust_remote_code:
            custom_code.allow(own)
        quantise_folder(own, self.config.lora.full)


@asynccontextmanager
async def open_run(config: RunConfig, display: Display, algorithms: Mapping[str, Algorithm]) -> AsyncIterator[OpenRun]:
    """Open a run's folder and session store, with everything that watches and records a run."""
    async with AsyncExitStack() as opened:
        enter = opened.enter_context
        enter(cores.at_once(2 if config.rollout.staleness else 1))
        if config.resume:
            folder = RunFolder.open(Path(config.resume), config, display.say)
        else:
            path = run_path(config.env.name, config.run_dir, config.rerun)
            folder = RunFolder.create(path, config, resumable=not config.rerun)
        enter(_guard_folder(folder, display))
        enter(faults.inject_faults(config.faults, folder.path))
        store = enter(Store(folder.path / "sessions.db"))
        enter(display)
        stop = partial(_stop_hung, config.watchdog, config.grace, display)
        enter(watchdog.Watchdog(folder.path, config.watchdog.timeout, stop))
        enter(logs.write_log(folder.path / logs.NAME, folder.path.name, secret_values(config)))
        enter(tracing.export_spans(config.tracing, {"agentrl.run": folder.path.name}, display.warn))
        for note in late_rates(config.learners, config.learning_steps):
            display.warn(note)
        yield OpenRun(config, folder, store, display, algorithms, opened)


def _stop_hung(watched: WatchdogConfig, grace: float, display: Display, seconds: float, file: Path) -> None:
    display.warn(f"no progress for {seconds:g} s (watchdog.timeout); where everything stands is in {file}")
    if watched.end:
        end = threading.Timer(grace + ENDING, interrupt.end_process, (128 + signal.SIGTERM,))
        end.daemon = True
        end.start()  # where the main thread hangs in a C call, and no Python handler of the signal can run
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stoppable(loop: Loop, display: Display) -> Iterator[None]:
    """Let `Display.request_stop` ask the run to save and end."""
    events = asyncio.get_running_loop()

    def request_stop() -> float:
        display.say(f"asked to stop: the run saves a checkpoint, within {loop.config.grace:g} s (grace)")
        events.call_soon_threadsafe(loop.stop_requested.set)
        return loop.config.grace

    before, display.request_stop = display.request_stop, request_stop
    try:
        yield
    finally:
        display.request_stop = before


@contextmanager
def _guard_folder(folder: RunFolder, display: Display) -> Iterator[None]:
    """Close a run's folder in the end; remove a new one where the run fails before its first checkpoint.

    Where that is because the disk failed or is full, what the run has done stays.
    """
    config = folder.config
    display.resume_hint = lambda: f"interrupted; {folder.resume_hint()}"
    try:
        folder.track(display.warn)
        if config.checkpoint_url:
            folder.uploads = Uploads(
                folder.path, config.checkpoint_url, config.keep_checkpoints, config.checkpoint_url_timeout, display.warn
            )
        yield
    except Exception as error:
        disks = None if isinstance(error, AgentRLError) else disk_failure(error)
        named = error if disks is None else StoreError(disk_error(disks, folder.path))
        disk = isinstance(named, StoreError) and (folder.path / "model").exists() and not config.rerun
        if isinstance(named, AgentRLError) and (folder.has_saved() or disk) and not config.rerun:
            named.add_note(f"once that is fixed, {folder.resume_hint()}")
        elif not config.resume and not (folder.has_saved() or disk):
            folder.discard()
            base_model.name_as_given(named, folder.path.resolve() / "model", config.model)
        if named is error:
            raise
        raise named from error
    finally:
        folder.close()
