"""What every run opens, whatever its groups are made of: its folder, its store, its model, and a way to stop it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from agentrl import faults, logs, tracing, watchdog
from agentrl.common import cores
from agentrl.config import MODEL, START, RunConfig
from agentrl.config.secrets import secret_values
from agentrl.errors import AgentRLError, ConfigError, StoreError
from agentrl.models.folders import pin
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.driver import interrupt, setup
from agentrl.train.driver.loop import Loop
from agentrl.train.record import manifest
from agentrl.train.record.files import disk_error
from agentrl.train.record.remote_copy import Uploads
from agentrl.train.record.run_folder import RunFolder, run_path

DISK_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
ENDING = 10.0
"""Seconds beyond `grace` after which a run that hangs is ended, where SIGTERM did not end it."""


@contextmanager
def opened_run(config: RunConfig, display: Display) -> Iterator[tuple[RunFolder, Store]]:
    """The run's folder and session store, with everything that watches and records a run."""
    with (
        cores.at_once(2 if config.rollout.staleness else 1),
        open_folder(config, display) as folder,
        faults.injected(config.faults, folder.path),
        Store(folder.path / "sessions.db") as store,
        display,
        watchdog.Watchdog(folder.path, config.watchdog.timeout, partial(_hung, config, display)),
        logs.written(folder.path / logs.NAME, folder.path.name, secret_values(config)),
        tracing.exported(config.tracing, {"agentrl.run": folder.path.name}, display.warn),
    ):
        yield folder, store


def _hung(config: RunConfig, display: Display, seconds: float, file: Path) -> None:
    display.warn(f"no progress for {seconds:g} s (watchdog.timeout); where everything stands is in {file}")
    if config.watchdog.end:
        end = threading.Timer(config.grace + ENDING, interrupt.end_process, (128 + signal.SIGTERM,))
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
def open_folder(config: RunConfig, display: Display) -> Iterator[RunFolder]:
    """The run's folder: an existing one, or a new one, removed where the run fails before its first checkpoint.

    Where that is because the disk failed or is full, what the run has done stays.

    Raises:
        StoreError: the folder's disk failed or is full; the message says how to resume.
    """
    if config.resume:
        folder = RunFolder.open(Path(config.resume), config, display.say)
    else:
        folder = RunFolder.create(run_path(config), config)
    display.resume_hint = lambda: f"interrupted; {folder.resume_hint()}"
    try:
        folder.track(config, display.warn)
        if config.checkpoint_url:
            folder.uploads = Uploads(folder.path, config.checkpoint_url, config, display.warn)
        yield folder
    except Exception as error:
        ours = isinstance(error, OSError) and not isinstance(error, AgentRLError) and error.errno in DISK_FAILED
        named = StoreError(disk_error(error, folder.path)) if ours else error
        disk = isinstance(named, StoreError) and (folder.path / "model").exists() and not config.rerun
        if isinstance(named, AgentRLError) and (folder.has_saved() or disk) and not config.rerun:
            named.add_note(f"once that is fixed, {folder.resume_hint()}")
        elif not config.resume and not (folder.has_saved() or disk):
            folder.discard()
            setup.name_as_given(named, folder.path.resolve() / "model", config.model)
        if named is error:
            raise
        raise named from error
    finally:
        folder.close()


async def own_model(
    config: RunConfig, build_tiny: Callable[[Path, int], Awaitable[Path]], folder: RunFolder, display: Display
) -> Path:
    """The run's own copy of the model that it began with: engines load it, also when they restart.

    The folder given as `model=` and the run's checkpoints may be deleted at any time; this copy stays. Where it is
    damaged, it is replaced by the checkpoint that the run resumes from. `build_tiny` makes the tiny model, where that
    is asked for, in a folder with a seed.
    """
    own = folder.path.resolve() / "model"
    fault = manifest.damage(own) if own.exists() else ""
    if fault is None:
        return own
    if folder.checkpoint:
        policies = {name: policy for name, policy in config.policies.items() if policy.name == MODEL}
        if frozen := [name for name, policy in policies.items() if policy.model.name == START]:
            raise ConfigError(f"policies.{frozen[0]}.model=start: {own} has been damaged or removed")
        if fault:
            display.warn(f"{own}: {fault}; replaced by a copy of {folder.checkpoint.name}")
        pin(folder.checkpoint, own)
    elif config.rerun:
        pin(Path(config.rerun) / "model", own)
    elif config.model.name == setup.TINY:
        await build_tiny(own, config.seed)
    else:
        pin(setup.resolve_model(config.model, config.algo), own)
    manifest.write(own)
    if folder.checkpoint:
        folder.seals.replace_model()
    return own
