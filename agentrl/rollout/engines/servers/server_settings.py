"""The settings of engines over an inference server: `engine=sglang`, `engine=vllm`, and those from outside."""

from __future__ import annotations

from typing import Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.config import EngineConfig
from agentrl.config.secrets import Secret

OptionValue = bool | int | float | str | list[int | float | str] | dict[str, Any] | None
"""A server's option: true is a bare flag, false and null leave it out, a list repeats its values, a mapping is JSON."""


class ServerConfig(EngineConfig):
    """An inference server, started by agentrl or already running."""

    cores: str | None = None
    """CPU cores of a server that binds its threads itself (SGLang with AMX or on ARM): 0-3, for two ranks 0-3|4-7."""
    url: str | None = None
    """A running server to attach to; None starts one, which ends with the run."""
    api_key: Secret | None = None
    """The bearer token that a running server requires."""
    python: str | None = None
    """The interpreter that starts the server, where it is installed in an environment of its own; None is this one."""
    server: dict[str, OptionValue] = Field(default={})
    """Further options of the server as its own command line has them: engine.server.mem_fraction_static=0.8."""
    log: str | None = None
    """A file for the server's output; None is a temporary one, whose last lines are shown if the server dies."""
    start_timeout: PositiveFloat = 900.0
    """Seconds in which a server must have loaded its model."""
    stream_tokens: PositiveInt = 8
    """Tokens that a server sends at a time; fewer arrive more evenly, more cost less."""
    adapter_rank: NonNegativeInt = 0
    """The largest rank of adapters that it computes beside its base (`lora`); 0: it gets merged weights."""
    colocated: bool = False
    """It takes turns with the trainer on the trainer's GPUs; fleet.colocated sets it."""
