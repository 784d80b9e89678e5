"""`agentrl serve`: the gateway by itself, over the engines of one model."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console

from agentrl.config import NAMED, EngineConfig, FleetConfig, ModelConfig, Section, WeightsConfig
from agentrl.models import resolve
from agentrl.overrides import validate
from agentrl.rollout.fleet import make_engines


class ServeConfig(Section):
    """What `agentrl serve` takes."""

    model: Annotated[ModelConfig, NAMED]
    """A known model or a Hugging Face folder."""
    engine: Annotated[EngineConfig, NAMED] = EngineConfig()
    """What generates."""
    fleet: FleetConfig = FleetConfig()
    """How many engines, and what is done about those that fail."""
    host: str = "127.0.0.1"
    """The address to bind to; any other than loopback gets a key for opening sessions."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The port; 0 takes a free one."""
    admin_key: str | None = None
    """What opening a session needs."""
    store: str = "sessions.db"
    """Where sessions are kept; sessions that are open there are taken up again."""


def serve_words(tree: dict[str, Any], out: Console) -> None:
    """Serve until interrupted or terminated; then engines and store are closed in order.

    Raises:
        ConfigError: a setting is unknown, missing, or of the wrong type.
    """
    config = validate(tree, ServeConfig)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_serve(config, out))


async def _serve(config: ServeConfig, out: Console) -> None:
    from agentrl.sessions.gateway import serve
    from agentrl.sessions.renderers import get_renderer
    from agentrl.sessions.store import Store

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    path = resolve(config.model.name)
    engine = make_engines(config.engine, config.fleet, WeightsConfig(), path)
    try:
        with Store(Path(config.store)) as store:
            await serve(
                engine,
                get_renderer(path, config.model.renderer),
                store,
                host=config.host,
                port=config.port,
                admin_key=config.admin_key,
                model=config.model.name,
                strip_reasoning=config.model.reasoning == "strip",
                announce=lambda text: out.print(text, highlight=False, soft_wrap=True),
            )
    finally:
        await engine.close()
