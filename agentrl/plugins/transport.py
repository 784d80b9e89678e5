"""A weight transport as a plug-in: how a trainer's weights reach engines.

It is a `TransportPlugin` that makes an object with the protocol `Transport`: `stage` while engines generate, `send`
while they are paused. Each engine is a `Receiver`. The plug-in's attribute `settings` is the class of the section
`weights.*`.

- Named by `weights.transport=file.py:NAME`, or an entry point in the group `agentrl.transports`.
- Proven by `check_transport`.
"""

from typing import TYPE_CHECKING

from agentrl.config import EngineConfig, WeightsConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.plugins.later import import_later
from agentrl.rollout.weights import TRANSPORTS, TransportPlugin
from agentrl.rollout.weights.receiver import LoadCommit, Receiver

if TYPE_CHECKING:
    from agentrl.plugins.suites.transport import check_transport
    from agentrl.rollout.weights.buckets import Bucket, Named, buckets
    from agentrl.rollout.weights.snapshot import write_snapshot
    from agentrl.rollout.weights.transports.base import Sent, Transport, each
else:
    __getattr__ = import_later(
        __name__,
        "agentrl.rollout.weights.transports.base",
        "agentrl.rollout.weights.snapshot",
        "agentrl.rollout.weights.buckets",
        "agentrl.plugins.suites.transport",
    )

__all__ = [
    "TRANSPORTS",
    "Bucket",
    "ConfigError",
    "EngineConfig",
    "EngineError",
    "LoadCommit",
    "Named",
    "Receiver",
    "Sent",
    "Transport",
    "TransportPlugin",
    "WeightsConfig",
    "buckets",
    "check_transport",
    "each",
    "write_snapshot",
]
