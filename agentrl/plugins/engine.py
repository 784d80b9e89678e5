"""An inference engine as a plug-in: it generates tokens, and takes new weights.

It is an object with the protocol `Engine`, made by an `EnginePlugin` that says what is known before it starts: its
settings (`engine.*`), its worker ranks, the weight transport that suits it. `RemoteEngine` is the part that all servers
share; `ServerPlugin` starts one in a process of its own. A class that takes a folder, its settings and a tokenizer is a
plug-in too.

- Named by `engine=file.py:ENGINE`, or an entry point in the group `agentrl.engines`.
- Proven by `check_engine`.
- Example: `examples/plugins/completions_engine.py`.
"""

from agentrl.config import EngineConfig
from agentrl.errors import ConfigError, DeadlineExceeded, EngineError, InvalidInput
from agentrl.rollout.engines import ENGINES, EnginePlugin, make_engine
from agentrl.rollout.engines.contract import ContractFinding, check_engine
from agentrl.rollout.engines.managed import ManagedEngine
from agentrl.rollout.engines.plugin import ServerPlugin
from agentrl.rollout.engines.servers.http import Http
from agentrl.rollout.engines.servers.open_request import OpenRequest
from agentrl.rollout.engines.servers.remote import RemoteEngine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.weights.receiver import EngineReceiver, LoadCommit, Receiver
from agentrl.types import (
    Arrival,
    Capabilities,
    Chunk,
    Engine,
    FinishReason,
    Health,
    PauseMode,
    Placed,
    Sampling,
    Tokenizer,
    TopLogprobs,
    Turn,
    VersionSpan,
    collect,
)

__all__ = [
    "ENGINES",
    "Arrival",
    "Capabilities",
    "Chunk",
    "ConfigError",
    "DeadlineExceeded",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EnginePlugin",
    "EngineReceiver",
    "ContractFinding",
    "FinishReason",
    "Health",
    "Http",
    "InvalidInput",
    "LoadCommit",
    "ManagedEngine",
    "OpenRequest",
    "PauseMode",
    "Placed",
    "Receiver",
    "RemoteEngine",
    "Sampling",
    "ServerConfig",
    "ServerPlugin",
    "Tokenizer",
    "TopLogprobs",
    "Turn",
    "VersionSpan",
    "check_engine",
    "collect",
    "make_engine",
]
