"""A sandbox backend as a plug-in: where commands that a model wrote run.

It is an async function of a `SandboxSpec` that returns an object with the protocol `Sandbox`. An environment starts one
by `create(spec, name)`.

- Named where a backend is (`sandbox: str` of an environment, `agentrl check sandbox=…`), or by an entry point in the
  group `agentrl.sandboxes`.
- Proven by `check_sandbox`, which `agentrl check sandbox=NAME` runs.
"""

from agentrl.errors import InvalidInput, SandboxError, ToolError
from agentrl.tools.sandbox.base import (
    ExecResult,
    Outcome,
    PathError,
    Process,
    Sandbox,
    SandboxDied,
    Snapshot,
    SnapshotRefused,
)
from agentrl.tools.sandbox.conformance import check_sandbox
from agentrl.tools.sandbox.registry import SANDBOXES, create
from agentrl.tools.sandbox.spec import SandboxSpec

__all__ = [
    "SANDBOXES",
    "ExecResult",
    "InvalidInput",
    "Outcome",
    "PathError",
    "Process",
    "Sandbox",
    "SandboxDied",
    "SandboxError",
    "SandboxSpec",
    "Snapshot",
    "SnapshotRefused",
    "ToolError",
    "check_sandbox",
    "create",
]
