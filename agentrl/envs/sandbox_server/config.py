"""The settings of `agentrl sandbox serve`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from agentrl.config import Section
from agentrl.config.sections import PathText
from agentrl.tools.sandbox.spec import SandboxSpec

LARGEST = {"memory_mb": 8192.0, "cpus": 8.0, "pids": 4096.0, "nofile": 65536.0, "lifetime": 4 * 3600.0}


class SandboxServerConfig(Section):
    """Settings of `agentrl sandbox serve`."""

    sandbox: str = "docker"
    """The provider of the sandboxes (`agentrl plugins`); subprocess isolates nothing from whoever has the key."""
    host: str = "127.0.0.1"
    """The address to bind to."""
    hosts: tuple[str, ...] = ()
    """Names besides this machine's that a request's Host header may have, such as a service's."""
    port: int = Field(default=8700, ge=0, le=65535)
    """The port; 0 takes a free one."""
    key_file: PathText | None = None
    """A file with the key that clients need, at least 16 characters; None: the variable AGENTRL_SANDBOX_KEY."""
    tls_certificate: PathText | None = None
    """Serve HTTPS with this certificate (a PEM file, those of intermediate authorities after it); None is HTTP."""
    tls_key: PathText | None = None
    """The certificate's private key (a PEM file without a password)."""
    sandboxes: PositiveInt = 64
    """Sandboxes alive at once, those of all clients together."""
    wait: PositiveFloat = 60.0
    """Seconds that a request for a sandbox waits while all are taken; then it is refused."""
    request_bytes: PositiveInt = 288 << 20
    """The largest request, and the largest answer."""
    file_bytes: PositiveInt = 256 << 20
    """The most that is read of a file, written to one, or kept of a command's output."""
    seconds: PositiveFloat = 3600.0
    """The longest time that a client may give a command."""
    lease: PositiveFloat = 120.0
    """Seconds without a word from a client after which its sandboxes end."""
    reuse: Literal["proven", "never"] = "proven"
    """proven: cleaned and reused where it is verified that nothing remains; never: each is used once."""
    allow: tuple[str, ...] = ()
    """Fields of a specification that clients may set although they weaken it or reach out: writable_root, network,
    egress, user, capabilities, seccomp, privilege_gain, disk_mb, runtime, daemon."""
    largest: dict[str, float] = LARGEST
    """The largest values of a specification's numbers; those that are not named keep their defaults."""

    @field_validator("largest")
    @classmethod
    def _are_numbers(cls, largest: dict[str, float]) -> dict[str, float]:
        defaults = SandboxSpec().model_dump()
        for name in largest:
            if not isinstance(defaults.get(name), int | float) or isinstance(defaults[name], bool):
                raise ValueError(f"{name} is no number of a sandbox's specification")
        return {**LARGEST, **largest}
