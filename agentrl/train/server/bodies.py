"""The bodies of requests in JSON, as far as they are read; what else clients send changes nothing here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from agentrl.errors import InvalidInput
from agentrl.train.server.passes import AdamStep

Metadata = dict[str, Any] | None
Seconds = Annotated[int, Field(ge=1)] | None


class SessionBody(BaseModel):
    """A new session of a client."""

    tags: list[str] = []
    user_metadata: Metadata = None
    sdk_version: str = ""
    display_name: str | None = None


class AdapterBody(BaseModel):
    """A new adapter."""

    rank: PositiveInt
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerKind(BaseModel):
    """An optimizer's family."""

    type: str = "adamw"


class CreateModel(BaseModel):
    """A new training run."""

    session_id: str
    model_seq_id: NonNegativeInt
    base_model: str
    user_metadata: Metadata = None
    lora_config: AdapterBody | None = None
    optimizer_config: OptimizerKind = OptimizerKind()


class LoadWeights(BaseModel):
    """Saved weights for a run: for one that there is, or (`session_id`, `model_seq_id`) for a new one."""

    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: NonNegativeInt | None = None
    base_model: str | None = None
    user_metadata: Metadata = None
    optimizer_config: OptimizerKind | None = None
    weights_access_token: str | None = None


class OptimStep(BaseModel):
    """An update."""

    model_id: str
    seq_id: PositiveInt
    adam_params: AdamStep | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(BaseModel):
    """Weights to save: for training to go on with, or to sample from."""

    model_id: str
    seq_id: PositiveInt
    path: str | None = None
    overwrite: bool = False
    ttl_seconds: Seconds = None
    user_metadata: Metadata = None
    sampling_session_seq_id: NonNegativeInt | None = None
    kind: str = "snapshot"


class SamplerBody(BaseModel):
    """A new sampling session, of saved weights or of the base."""

    session_id: str
    sampling_session_seq_id: NonNegativeInt
    base_model: str | None = None
    model_path: str | None = None


class OfSession(BaseModel):
    """A request about a session."""

    session_id: str


class OfModel(BaseModel):
    """A request about a training run."""

    model_id: str


class OfPath(BaseModel):
    """A request about saved weights."""

    tinker_path: str


class RetrieveFuture(BaseModel):
    """The question for an answer."""

    request_id: str


class Expiry(BaseModel):
    """The time at which saved weights expire; None: never."""

    ttl_seconds: Seconds = None


def require_adam(kind: str) -> None:
    """Refuse another optimizer than AdamW."""
    if kind != "adamw":
        raise InvalidInput(f"optimizer {kind!r} is not here; only adamw is")
