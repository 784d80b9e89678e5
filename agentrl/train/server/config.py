"""The settings of `agentrl serve-training`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from agentrl.config import NAMED, ModelConfig, Section
from agentrl.config.sections import LISTED, PathText
from agentrl.rollout.engines.local.plugin import LocalConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig


class ServeTrainingConfig(Section):
    """The settings of `agentrl serve-training`."""

    model: Annotated[ModelConfig, NAMED]
    """The base of all adapters: a known model or a Hugging Face folder."""
    names: Annotated[tuple[str, ...], LISTED] = ()
    """Further names by which clients may ask for it as their base model, such as the hub's."""
    trainer: TorchConfig = TorchConfig()
    """The trainer: its device, precision, threads and token budget."""
    engine: LocalConfig = LocalConfig()
    """The engine that samples."""
    host: str = "127.0.0.1"
    """The address to bind to."""
    hosts: Annotated[tuple[str, ...], LISTED] = ()
    """Names besides this machine's that a request's Host header may have, such as a service's."""
    port: int = Field(default=8600, ge=0, le=65535)
    """The port; 0 takes a free one."""
    tls_certificate: PathText | None = None
    """Serve HTTPS with this certificate (a PEM file, those of intermediate authorities after it); None is HTTP."""
    tls_key: PathText | None = None
    """The certificate's private key (a PEM file without a password)."""
    tenants: Annotated[tuple[str, ...], LISTED] = ("default",)
    """Whoever has a key and a folder of their own; none sees another's runs."""
    run_dir: PathText | None = None
    """The folder of a new server; None: runs/serve-training-TIME."""
    resume: PathText | None = None
    """The folder of an earlier server, which goes on with its runs, keys and settings."""
    passes: Literal["separate", "mixed"] = "separate"
    """`separate`: each run's requests in passes of their own, as it would have alone. `mixed`: small requests that wait
    are computed in one pass, whichever runs' they are; equal up to rounding."""
    alpha: PositiveFloat = 32.0
    """An adapter's scale is alpha/rank."""
    max_rank: PositiveInt = 256
    """The largest rank of an adapter."""
    max_runs: PositiveInt = 64
    """Training runs of a tenant's open sessions; more are refused."""
    session_seconds: PositiveFloat = 3600.0
    """A session of which nothing was heard for so long counts as left: its runs are on the disk alone, and not counted.
    """
    max_queued: PositiveInt = 512
    """Requests of a tenant that wait or are computed; more get 429, and clients send them again."""
    max_tokens: PositiveInt = 4096
    """New tokens of a sample whose request sets no limit."""
    max_samples: PositiveInt = 128
    """Samples of one request."""
    request_bytes: PositiveInt = 64 << 20
    """The largest request."""
    keep_snapshots: PositiveInt = 16
    """Unnamed weights for sampling that each run keeps; those before the newest so many are removed."""

    @field_validator("tenants")
    @classmethod
    def _are_folders(cls, tenants: tuple[str, ...]) -> tuple[str, ...]:
        for name in tenants:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
                raise ValueError(f"{name!r} is no name of a folder: letters, digits, - and _")
        if not tenants or len(set(tenants)) != len(tenants):
            raise ValueError("there must be at least one tenant, and none twice")
        return tenants
