"""The section of the machines that a run uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from agentrl.config.sections import Section

PASSED = (
    *("*_API_KEY", "*_BASE_URL", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "NCCL_*"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""Variables that mean the same on every machine, and that environments, models and trainers read."""


class ResourcesConfig(Section):
    """Reservations of each worker of a role on its node, beside its GPUs; with cluster=ray."""

    cpus: NonNegativeFloat | None = None
    """CPU cores as Ray counts them, which bind nothing; None: 1 for an environment, reward or gateway worker, else
    0."""
    custom: dict[str, PositiveFloat] = Field(default={})
    """Other resources by the names that `ray start --resources=…` gave them: sandbox=1 finds sandbox hosts."""


class RewardResources(ResourcesConfig):
    """Reservations of each reward worker on its node; with cluster=ray."""

    gpus: int = Field(default=0, ge=0)
    """GPUs of its own, the only ones that it sees: for rewards that are models."""


class RoleResources(Section):
    """Reservations of each role's workers."""

    trainer: ResourcesConfig = ResourcesConfig()
    """The trainer."""
    engine: ResourcesConfig = ResourcesConfig()
    """Each engine."""
    environments: ResourcesConfig = ResourcesConfig()
    """Each environment worker, with its sandboxes and agent programs, and their gateway without cluster.gateways."""
    rewards: RewardResources = RewardResources()
    """Each reward worker."""
    gateway: ResourcesConfig = ResourcesConfig()
    """Each gateway worker."""


class ClusterConfig(Section):
    """Places of a run's engines, environments and trainer; see docs/cluster.md."""

    only_with: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("address", "environment", "max_environments", "place_timeout", "resources"), "name=ray"),
        "call_timeout": "name=ray",
        "max_restarts": "environments or rewards or gateways",
    }
    name: Literal["local", "ray"] = "local"
    """local: this machine; ray: the nodes of a Ray cluster, where engines and trainer get processes of their own."""
    address: str | None = None
    """A running Ray cluster: `auto` or host:port; None starts Ray on this machine for the run."""
    environment: tuple[str, ...] = PASSED
    """With cluster=ray: the variables of this process that its workers on all nodes get; * stands for any text. Their
    values are shown and recorded nowhere."""
    encrypted: bool = False
    """True: workers are called over TLS, each by a certificate of its own. Not what the trainer's ranks exchange, nor
    an engine's server, nor `weights.transport=distributed`."""
    environments: int = Field(default=0, ge=0)
    """Worker processes that play the sessions; 0: they are played in this process."""
    max_environments: int | None = Field(default=None, ge=1)
    """With cluster=ray: how many such workers there may be where nodes join during the run; None: as at its start."""
    sessions: bool | None = None
    """True: a process beside the run's own stores finished sessions, computes their credit and sends forests to the
    trainer, so that what goes through the run's process does not grow with a session's length; None: with cluster=ray
    and environment workers."""
    rewards: int = Field(default=0, ge=0)
    """Worker processes that compute the rewards that the run adds (`rewards.*`); 0: where a session is played."""
    gateways: int = Field(default=0, ge=0)
    """Worker processes that serve agent programs (`agent=`); 0: whoever plays a session has a gateway of its own."""
    resources: RoleResources = RoleResources()
    """The resources that the workers of each role reserve on their nodes."""
    start_timeout: PositiveFloat = 900.0
    """Seconds that a worker may take to be placed on a node, to start and to load its model."""
    place_timeout: PositiveFloat | None = None
    """With cluster=ray: seconds in which the nodes must have all that the run takes free; it is taken whole, before
    anything starts, or the run ends. None: each part takes its share when it starts."""
    silence_timeout: PositiveFloat = 30.0
    """Seconds without a sign of life after which a worker's process is ended, as if it had died; a call may take any
    time."""
    call_timeout: PositiveFloat | None = None
    """Seconds that a call of the trainer's process may take; None: as long as the process shows life."""
    max_restarts: int = Field(default=5, ge=0)
    """The number of environment workers that are replaced when they die; likewise reward and gateway workers, and the
    process of `cluster.sessions`."""

    @property
    def holds_sessions(self) -> bool:
        """True if a process beside the run's own holds its sessions."""
        return self.name == "ray" and self.environments > 0 if self.sessions is None else self.sessions

    @model_validator(mode="after")
    def _fits_together(self) -> ClusterConfig:
        if self.max_environments is not None and self.max_environments < self.environments:
            raise ValueError(
                f"cluster.max_environments={self.max_environments} is under cluster.environments={self.environments}"
            )
        if self.sessions and (self.name == "local" or not self.environments):
            has = "cluster=local has the trainer in the run's process" if self.name == "local" else "there are none"
            raise ValueError(
                f"cluster.sessions=true has environment workers send sessions past the run's process, and {has}: set "
                "cluster=ray and cluster.environments=N, or cluster.sessions=false"
            )
        if (self.address or "").startswith("ray://"):
            raise ValueError(
                f"cluster.address={self.address!r} is the address of Ray's client, through which no worker can be "
                "called: start the run on a machine of the cluster with cluster.address=auto, or as a job (`ray job "
                "submit`)"
            )
        return self
