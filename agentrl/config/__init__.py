"""The typed configuration of a run: one frozen section for each role, a line under each field.

Each role gets its own section and not the whole configuration. Where a section has a `name`, giving the
section a plain string sets it: `engine=sglang` means `engine.name=sglang`. YAML files and `key=value`
arguments are parsed in `agentrl.overrides`; cross-field rules are checked when a section is built.
"""

from agentrl.config.api import ApiConfig
from agentrl.config.cluster import ClusterConfig
from agentrl.config.data import DataConfig
from agentrl.config.engines import (
    WEIGHTS,
    EngineConfig,
    EngineSection,
    FleetConfig,
    ModelConfig,
    WeightsConfig,
    WeightsSection,
)
from agentrl.config.gateway import GatewayConfig
from agentrl.config.lora import LoraConfig
from agentrl.config.policies import MODEL, PAST, POPULATION, START, PastConfig, Policies, PolicyConfig
from agentrl.config.rollout import (
    BranchConfig,
    BranchSection,
    EnvConfig,
    EvalConfig,
    GroupRewardConfig,
    ProbeConfig,
    RewardConfig,
    RewardSection,
    RewardSections,
    RolloutConfig,
    SamplerConfig,
    SamplerSection,
    SandboxConfig,
)
from agentrl.config.run import RunConfig, WatchdogConfig
from agentrl.config.sections import LISTED, NAMED, Device, Dtype, Fraction, OfPlugin, Section
from agentrl.config.tools import ToolConfig, ToolSection, ToolSections
from agentrl.config.training import (
    ALGORITHMS,
    AlgoConfig,
    AlgoSection,
    Bounds,
    CorrectionConfig,
    ShapingConfig,
    TrainerConfig,
    TrainerSection,
    WarmStartConfig,
)

__all__ = [
    "ALGORITHMS",
    "MODEL",
    "PAST",
    "POPULATION",
    "AlgoConfig",
    "AlgoSection",
    "ApiConfig",
    "Bounds",
    "BranchConfig",
    "BranchSection",
    "ClusterConfig",
    "DataConfig",
    "CorrectionConfig",
    "Device",
    "Dtype",
    "EngineConfig",
    "EngineSection",
    "EnvConfig",
    "EvalConfig",
    "FleetConfig",
    "GatewayConfig",
    "GroupRewardConfig",
    "Fraction",
    "LISTED",
    "LoraConfig",
    "ModelConfig",
    "NAMED",
    "OfPlugin",
    "PastConfig",
    "Policies",
    "PolicyConfig",
    "ProbeConfig",
    "RewardConfig",
    "RewardSection",
    "RewardSections",
    "RolloutConfig",
    "RunConfig",
    "START",
    "SamplerConfig",
    "SamplerSection",
    "SandboxConfig",
    "Section",
    "ShapingConfig",
    "ToolConfig",
    "ToolSection",
    "ToolSections",
    "TrainerConfig",
    "TrainerSection",
    "WEIGHTS",
    "WarmStartConfig",
    "WatchdogConfig",
    "WeightsConfig",
    "WeightsSection",
]
