"""`agentrl serve-training`: the server's process, from its settings to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.common import cores
from agentrl.common.concurrency import cancel_on
from agentrl.config.sections import named_folder
from agentrl.errors import ConfigError
from agentrl.models.registry import model_folder
from agentrl.overrides import merge, validate
from agentrl.train.record.files import write_atomically
from agentrl.train.record.lock import RunLock
from agentrl.train.server.config import ServeTrainingConfig

if TYPE_CHECKING:
    from agentrl.train.server.service import TrainingService

SETTINGS = "server.json"


def read_settings(tree: dict[str, Any]) -> tuple[ServeTrainingConfig, Path, dict[str, Any]]:
    """Return a server's settings and folder, and what of the settings `resume` reads again.

    Raises:
        ConfigError: a setting is wrong, the folder has a server already, or has none.
    """
    resume = named_folder(tree, "resume")
    if resume is None:
        config = validate(tree, ServeTrainingConfig)
        folder = Path(config.run_dir or f"runs/serve-training-{time.strftime('%Y%m%d-%H%M%S')}")
        if (folder / SETTINGS).exists():
            raise ConfigError(f"run_dir={str(folder)!r} has a server's runs; resume={folder} goes on with them")
        return config, folder, tree
    folder = Path(resume)
    try:
        kept = json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"resume={str(folder)!r}: there is no training server's folder ({error})") from None
    given = {key: value for key, value in tree.items() if key != "resume"}
    merged = merge(kept, given)
    config = validate(merged, ServeTrainingConfig)
    if config.model.name != validate(kept, ServeTrainingConfig).model.name:
        raise ConfigError(f"model={config.model.name!r}: the adapters in {folder} belong to another base")
    return config, folder, merged


@contextlib.asynccontextmanager
async def running(config: ServeTrainingConfig, folder: Path) -> AsyncIterator[tuple[str, TrainingService]]:
    """Serve while the block runs; yields the address and the service.

    Raises:
        ConfigError: the model is none, or `tls_certificate` and `tls_key` don't fit.
        InfraError: the address is taken.
    """
    from agentrl.sessions.gateway.http.listener import address, listening, serve_app
    from agentrl.sessions.gateway.http.own_host import Hosts, OwnHost
    from agentrl.sessions.gateway.http.tls import Tls
    from agentrl.sessions.gateway.limits import Limits
    from agentrl.train.server.app import create_training_app
    from agentrl.train.server.service import TrainingService
    from agentrl.train.trainers.torch_trainer.plugin import TRAINER

    tls = Tls.of(config.tls_certificate, config.tls_key)
    model = model_folder(config.model)
    if TRAINER.proves(config.trainer):
        TRAINER.prove(config.trainer, model, config.model.name, None)
    with listening(config.host, config.port) as listener:
        service = TrainingService(config, model, folder)
        app = OwnHost(create_training_app(service), Hosts(config.hosts))
        limits = Limits(body_bytes=config.request_bytes)
        async with service.running(), serve_app(app, listener, limits, tls):
            yield address(listener, config.host, tls), service


@cores.one_each()
def serve_training(tree: dict[str, Any]) -> None:
    """Serve until interrupted or terminated; what is being computed is finished, and what waits goes on with `resume`.

    Prints one line of JSON once requests are answered: the address, and each tenant's key. A new server that never
    gets so far leaves no folder.
    """
    config, folder, kept = read_settings(tree)
    made, served = not folder.exists(), False
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder)
    write_atomically(folder / SETTINGS, json.dumps({k: v for k, v in kept.items() if k != "run_dir"}).encode())

    async def serve() -> None:
        nonlocal served
        cancel_on(signal.SIGTERM, signal.SIGINT)
        async with running(config, folder) as (url, service):
            keys = {tenant.name: tenant.key for tenant in service.tenants.all}
            about = {"address": url, "key": next(iter(keys.values())), "keys": keys, "run_dir": str(folder)}
            served = True
            print(json.dumps(about), flush=True)
            await asyncio.Event().wait()

    try:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(serve())
    finally:
        lock.release()
        if made and not served:
            shutil.rmtree(folder)
