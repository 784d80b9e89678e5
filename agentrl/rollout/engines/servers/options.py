"""A server's command line from typed settings, and the demands on the interpreter that runs it.

A server has hundreds of options and they change with every version, so `engine.server.*` passes them on by their
own names instead of listing them again: types are checked here, names by the server's own parser, whose message
ends up in the error when it refuses to start.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agentrl.config import EngineConfig
from agentrl.errors import ConfigError, MissingExtra
from agentrl.rollout.engines.servers.server_settings import OptionValue, ServerConfig
from agentrl.types import Sampling

Platform = Literal["cpu", "cuda", "rocm"]
OWNED = {
    "enable_lora": "engine.adapter_rank",
    "max_lora_rank": "engine.adapter_rank",
    "model": "model",
    "host": "agentrl itself",
    "port": "agentrl itself (engine.url attaches to a server of yours)",
    "dtype": "engine.dtype",
    "trust_remote_code": "model.trust_remote_code",
    "api_key": "engine.api_key",
}
"""Options of all servers that belong to a setting of ours, and which."""
_QUESTION = """
import importlib.metadata as metadata, sys
for name in sys.argv[1:]:
    try:
        print(metadata.version(name)); break
    except metadata.PackageNotFoundError:
        pass
"""
_QUESTION_SECONDS = 60.0


def command_line(options: Mapping[str, OptionValue]) -> list[str]:
    """Options as arguments: true is a bare flag, false and None are left out, a list is its values, a mapping JSON."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        words.append(flag)
        if isinstance(value, dict):
            words.append(json.dumps(value))
        elif isinstance(value, list):
            words += [str(item) for item in value]
        elif value is not True:
            words.append(str(value))
    return words


def option(config: ServerConfig, name: str, default: OptionValue = None) -> OptionValue:
    """Return what the user set an option to, spelled either way; else the default."""
    return config.server.get(name, config.server.get(name.replace("_", "-"), default))


def shared_params(sampling: Sampling, interval: int) -> dict[str, Any]:
    """The part of a request's sampling that SGLang and vLLM have the same words for; tokens are sent by `interval`."""
    found: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "skip_special_tokens": False,
        "stream_interval": interval,
    }
    if sampling.top_k is not None:
        found["top_k"] = sampling.top_k
    if sampling.repetition_penalty != 1:
        found["repetition_penalty"] = sampling.repetition_penalty
    if sampling.logit_bias:
        found["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return found


def merge(
    ours: Mapping[str, OptionValue], users: Mapping[str, OptionValue], owned: Mapping[str, str]
) -> dict[str, OptionValue]:
    """Merge our options with the user's, which win.

    Args:
        ours: the engine's options.
        users: `engine.server.*`.
        owned: options that belong to a setting of ours, and which.

    Raises:
        ConfigError: the user set one of `owned`.
    """
    found = dict(ours)
    for name, value in users.items():
        plain = name.replace("-", "_")
        if plain in owned:
            raise ConfigError(f"engine.server.{name}={value!r}: this is set by {owned[plain]}")
        found[plain] = value
    return found


def platform(config: EngineConfig) -> Platform:
    """Return the server's platform; `engine.device=auto` goes by what the kernel offers."""
    if config.device == "cpu":
        return "cpu"
    if Path("/dev/kfd").exists():
        return "rocm"
    if config.device == "cuda" or Path("/dev/nvidiactl").exists():
        return "cuda"
    return "cpu"


def interpreter(config: ServerConfig) -> str:
    """The interpreter that a server is started with; ConfigError where `engine.python` is no file."""
    if config.python is None:
        return sys.executable
    path = Path(config.python).expanduser()
    if not path.is_file():
        raise ConfigError(f"engine.python={config.python!r} is no interpreter: there is no such file")
    return str(path.absolute())


def check_version(python: str, packages: Sequence[str], low: tuple[int, ...], below: tuple[int, ...]) -> str:
    """Make sure that an interpreter has one of `packages` in a version that we know, and return it.

    Raises:
        MissingExtra: none is installed.
        ConfigError: the version is outside [low, below).
    """
    name = packages[0]
    wanted = f"{name}>={_dot(low)},<{_dot(below)}"
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, *packages], capture_output=True, text=True, timeout=_QUESTION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"engine.python={python!r} does not run: {error}") from None
    found = done.stdout.strip()
    if not found:
        raise MissingExtra(
            f"{name} is not installed for {python}; engine={name} needs {wanted}. It is best kept in an environment of "
            f"its own, named by engine.python=… (docs/engines.md)"
        )
    check_range(name, found, low, below)
    return found


def check_range(name: str, version: str, low: tuple[int, ...], below: tuple[int, ...]) -> None:
    """Make sure that a version is in [low, below); ConfigError where it is not."""
    if not low <= _numbers(version) < below:
        raise ConfigError(f"{name} {version} is outside the supported range {name}>={_dot(low)},<{_dot(below)}")


def _numbers(version: str) -> tuple[int, ...]:
    """The release part of a version: 0.5.23.post1 is (0, 5, 23)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _dot(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
