"""Models, the engines that generate with them, and how new weights reach the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, SerializeAsAny, model_validator

from agentrl.config.sections import Device, Dtype, OfPlugin, Section


class ModelConfig(Section):
    """The weights that a run starts from."""

    name: str = "tiny"
    """`tiny`, a name from `agentrl models`, or a local Hugging Face folder."""
    renderer: str = "auto"
    """The conversation format: `auto` (a built-in renderer that matches the model's chat template, else the template
    itself), a renderer's name, or `generic:GRAMMAR`, the template with replies parsed by that grammar."""
    trust_remote_code: bool = False
    """Run the Python code in the model's folder (`auto_map` in its config.json), with all rights of yours: read it
    first. A model that needs such code is refused otherwise."""
    stop: str = ""
    """A special token that ends a turn, needed where the chat template writes none; the format's own and those in
    `generation_config.json` do so anyway."""
    reasoning: Literal["keep", "strip"] = "keep"
    """Earlier reasoning: keep it, or strip it at each new user message, on a new branch that is prefilled again."""


class EngineConfig(Section):
    """Settings of every engine; an engine's own are a subclass (`EnginePlugin.settings`)."""

    name: str = "local"
    """The engine's name or import path; `agentrl plugins` lists the names."""
    device: Device = "auto"
    """The device that it runs on."""
    dtype: Dtype = "float32"
    """The precision it computes in."""
    max_batch: PositiveInt = 64
    """Sequences decoded at the same time."""
    max_context: PositiveInt | None = None
    """Tokens of the longest path; None is the model's own limit."""
    deterministic: bool = True
    """The same tokens whatever the arrival order and the batch composition."""
    threads: PositiveInt | None = None
    """CPU threads of each engine; None is its share of the cores, or 1 for a server with a small model."""
    routed_experts: bool = False
    """Record which experts each token was routed to; set where the trainer replays them."""
    support_bytes: NonNegativeInt = 2048
    """The most stored bytes, for each token of a turn, of the sets that they were drawn from (top-p, top-k, min-p, a
    grammar); tokens of the sets beyond it, the longest, are not trained. 0 records none."""


class FleetConfig(Section):
    """Several engines behind one interface, and the handling of failures; see docs/fleet.md."""

    only_with: ClassVar[Mapping[str, str]] = {"engines": "!urls"}
    engines: PositiveInt = 1
    """The number of engines."""
    max_engines: PositiveInt | None = None
    """With cluster=ray: how many there may be where nodes join during the run; None: as at its start."""
    urls: tuple[str, ...] = ()
    """Running servers to attach to, an engine for each; overrides fleet.engines."""
    colocated: bool = False
    """The engines' servers share the trainer's GPUs: they release their memory while it trains."""
    colocated_engines: PositiveInt | None = None
    """With fleet.colocated=true: how many of the engines do; the others have GPUs of their own. None: all of them."""
    max_imbalance: PositiveInt = 8
    """A session moves to another engine (without its cached prefix) where its own has this many requests more."""
    stall_timeout: PositiveFloat = 60.0
    """Seconds without a token from an engine that has requests, after which it counts as hung."""
    probe_every: PositiveFloat = 2.0
    """Seconds between an engine's probes."""
    probe_timeout: PositiveFloat = 20.0
    """Seconds that an engine may take to answer a probe, unless it generates tokens meanwhile."""
    max_failures: PositiveInt = 3
    """Different requests that fail in a row, after which an engine that still answers probes is restarted."""
    max_attempts: PositiveInt = 3
    """The number of times that a request may fail, or be on an engine that dies, before it is given up."""
    max_restarts: int = Field(default=5, ge=0)
    """The number of times that an engine is restarted before it is given up."""
    regain_restart_after: PositiveFloat = 600.0
    """Seconds without a failure after which an engine regains one restart."""

    @property
    def shared(self) -> int:
        """The number of engines on the trainer's GPUs, the first ones."""
        return (self.colocated_engines or self.count) if self.colocated else 0

    @property
    def count(self) -> int:
        """The number of engines at the start."""
        return len(self.urls) or self.engines

    @model_validator(mode="after")
    def _some_are_colocated(self) -> FleetConfig:
        number = self.colocated_engines
        if number is not None and not (self.colocated and number <= self.count):
            raise ValueError(
                f"fleet.colocated_engines={number} needs fleet.colocated=true, and as many engines at least: "
                f"fleet.colocated={str(self.colocated).lower()}, fleet.engines={self.count}"
            )
        return self


class WeightsConfig(Section):
    """Settings of weight publication that every transport has; its own settings are a subclass."""

    only_with: ClassVar[Mapping[str, str]] = {"probe_bound": "probe_tokens", "start_bound": "!start_tokens=0"}
    transport: str = "auto"
    """The transport's name or import path; `agentrl plugins` lists the names, and docs/fleet.md says what each does."""
    mode: Literal["drain", "abort", "retract", "in_place"] = "drain"
    """The treatment of running requests: finished first, cut and continued, queued anew, or kept with their caches."""
    bucket_mb: PositiveInt | None = None
    """Megabytes that travel together; None is 512, and 31 where weights go through a CPU's memory (gloo, ipc)."""
    dtype: Dtype | None = None
    """The precision that weights are sent in; None is the engine's."""
    verify: bool = True
    """Compare the engines' checksums with each other after each publication."""
    probe_tokens: int = Field(default=48, ge=0)
    """Tokens of the prompt by which each engine is compared with the trainer after a publication; 0: no comparison."""
    probe_bound: PositiveFloat | None = None
    """A mean |log-probability difference| on that prompt over this stops the run; None: what suits the precision, four
    times transformers' own error in it, and 0.002 in float32."""
    prove_every: int = Field(default=0, ge=0)
    """Every how many publications one more engine, started for that, loads the weights from a folder, and the run's
    engines must have its checksum; 0: never."""
    start_tokens: int | None = Field(default=None, ge=0)
    """Tokens of the long prompt of the comparison at the start; None is as many as take a few seconds; 0: none."""
    start_bound: PositiveFloat | None = None
    """Its bound, for each segment of the prompt; None is twice transformers' own error in that precision."""
    timeout: PositiveFloat = 600.0
    """Seconds for draining, and for sending."""
    keep: bool = True
    """Keep a copy in host memory for restarted engines, where the transport leaves none on a disk."""

    @property
    def bucket_bytes(self) -> int:
        """`bucket_mb` in bytes, where weights go to a disk or from one GPU to another."""
        return (self.bucket_mb or 512) << 20


EngineSection = Annotated[SerializeAsAny[EngineConfig], OfPlugin("agentrl.rollout.engines:ENGINES")]
WEIGHTS = OfPlugin("agentrl.rollout.weights:TRANSPORTS", key="transport")
WeightsSection = Annotated[SerializeAsAny[WeightsConfig], WEIGHTS]
