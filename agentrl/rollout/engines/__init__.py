"""Engines, and the contract they all keep.

`make_engine` builds one by its registered name or by an import path (`package.module:NAME`); what an engine needs is
imported only when one is made. `contract.check_engine` proves that one keeps the contract.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.config import EngineConfig, FleetConfig
from agentrl.registry import Registry
from agentrl.rollout.engines.plugin import EngineFactory, EngineFactoryPlugin, EnginePlugin
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.types import Engine


def _accept(found: Any) -> EnginePlugin | None:
    if isinstance(found, EnginePlugin):
        return found
    return EngineFactoryPlugin(found) if callable(found) else None


ENGINES: Registry[EnginePlugin] = Registry(
    "engine",
    "engine",
    "agentrl.engines",
    {
        "local": "agentrl.rollout.engines.local.plugin:ENGINE",
        "sglang": "agentrl.rollout.engines.servers.sglang:ENGINE",
        "vllm": "agentrl.rollout.engines.servers.vllm:ENGINE",
    },
    accept=_accept,
    settings=EngineConfig,
)


def make_engine(config: EngineConfig, model_path: str | Path) -> Engine:
    """The engine that `config.name` names, serving the model in `model_path`.

    Raises:
        UnknownName: no engine has that name, and there is none at that import path.
        MissingExtra: what the engine needs is not installed.
    """
    return ENGINES.find(config.name).make(Path(model_path), config)


def check_engine(config: EngineConfig, fleet: FleetConfig, *, here: bool = True) -> None:
    """Refuse settings that no engine can be made from, before there is a model.

    Args:
        config: the engine's section.
        fleet: the fleet's.
        here: whether servers are started on this machine; on another, what is installed here does not matter.

    Raises:
        UnknownName: no engine has that name, and there is none at that import path.
        MissingExtra: the server's package is not installed for `engine.python`.
        ConfigError: there is no such device, interpreter or address, or its version is not supported.
    """
    urls = {f"fleet.urls[{i}]": url for i, url in enumerate(fleet.urls)}
    if isinstance(config, ServerConfig) and config.url is not None:
        urls["engine.url"] = config.url
    plugin = ENGINES.find(config.name)
    if here or urls or not isinstance(config, ServerConfig):
        plugin.check(config, urls)


def check_reference(config: EngineConfig, fleet: FleetConfig) -> None:
    """Refuse `weights.prove_every` where engines run elsewhere, and none of their kind can be started here.

    Raises:
        MissingExtra: the server's package is not installed for `engine.python`.
        ConfigError: there is no such interpreter, or its version is not supported.
    """
    if isinstance(config, ServerConfig) and (config.url or fleet.urls):
        ENGINES.find(config.name).check(config.model_copy(update={"url": None}), {})


__all__ = ["ENGINES", "EngineFactory", "EnginePlugin", "check_engine", "check_reference", "make_engine"]
