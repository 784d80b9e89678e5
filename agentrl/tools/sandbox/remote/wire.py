"""The calls of a client to a sandbox server: each is `POST /sandboxes/ID/METHOD` with msgpack both ways.

The client makes up the ids, so that it can close what it was never told of. The arguments of each method are those of
the server's function of that name (`envs/sandbox_server/held.py`); an answer is its result, or a `Failure`.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, InvalidInput, SandboxError, ToolArguments
from agentrl.tools.sandbox.base import (
    DaemonError,
    ExecResult,
    PathError,
    SandboxDied,
    SandboxMemory,
    SandboxStarved,
    SnapshotRefused,
)

CLIENT = "x-agentrl-client"
"""The header that says whose sandboxes are meant: a secret of the client's process."""
VARIABLE = "AGENTRL_SANDBOX_KEY"
SHORTEST_KEY = 16
_KINDS = (
    *(ConfigError, DaemonError, DeadlineExceeded, InvalidInput, PathError, SandboxDied, SandboxError, SandboxMemory),
    *(SandboxStarved, SnapshotRefused, ToolArguments),
)
Report = tuple[tuple[bytes, ExecResult] | None, bool]
"""The answer of an interactive process: what came in time, with the output before it, and whether it still runs."""
ERRORS: dict[str, type[AgentRLError]] = {kind.__name__: kind for kind in _KINDS}
"""The failures that keep their kind from one machine to the other; any other is a SandboxError."""


class Created(msgspec.Struct):
    """A new sandbox's working directory, and what the server says of itself.

    Attributes:
        workdir: an absolute path.
        lease: seconds without a word from the client after which its sandboxes end.
        request_bytes: the largest request.
    """

    workdir: str
    lease: float
    request_bytes: int


class Failure(msgspec.Struct):
    """A failed call: the name of an error, and its message."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """An error as it is sent."""
        names = (one.__name__ for one in type(error).__mro__)
        return cls(next((name for name in names if name in ERRORS), "SandboxError"), str(error) or repr(error))

    def error(self) -> AgentRLError:
        """The error that it was."""
        return ERRORS.get(self.kind, SandboxError)(self.message)


def read_key(key_file: str | None, setting: str) -> str:
    """The key that clients and server share: from a file, or from the variable AGENTRL_SANDBOX_KEY.

    Args:
        key_file: the file; None: the variable.
        setting: what the file's setting is called in messages.

    Raises:
        ConfigError: there is none, or it is short.
    """
    try:
        key = Path(key_file).expanduser().read_text().strip() if key_file else os.environ.get(VARIABLE, "").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}={key_file}: can't be read: {error}") from None
    if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()):
        where = f"{setting}={key_file}" if key_file else f"the variable {VARIABLE} (or {setting}=FILE)"
        raise ConfigError(f"{where} must hold a key of at least {SHORTEST_KEY} printable ASCII characters")
    return key
