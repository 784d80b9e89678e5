"""`agentrl serve` in one process: the gateway without a run, over the engines of one model."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from agentrl import logs, tracing
from agentrl.common.concurrency import cancel_on
from agentrl.common.foreign_errors import port_advice
from agentrl.config import (
    NAMED,
    EngineSection,
    FleetConfig,
    GroupRewardConfig,
    ModelConfig,
    RewardSections,
    Section,
    WeightsConfig,
)
from agentrl.config.gateway import ONE_TURN, ExclusionRule, ForwardConfig, ImageUrlsConfig
from agentrl.config.secrets import secret_values
from agentrl.config.sections import PathText
from agentrl.envs.base import Env
from agentrl.envs.results import error_text, give_rewards
from agentrl.envs.rewards import open_rewards
from agentrl.errors import AgentRLError, ConfigError, StoreError
from agentrl.models.registry import model_folder
from agentrl.rollout.engines import check_engine
from agentrl.rollout.fleet import make_engines, wait_until_started
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.types import Engine, Session, Status

if TYPE_CHECKING:
    from agentrl.sessions.gateway.http.tls import Tls
    from agentrl.sessions.gateway.workers import SessionShard

logger = logging.getLogger(__name__)


class ServeConfig(Section):
    """The settings of `agentrl serve`."""

    model: Annotated[ModelConfig, NAMED]
    """A known model or a Hugging Face folder."""
    engine: EngineSection = Field({}, validate_default=True)
    """The engine that generates."""
    fleet: FleetConfig = FleetConfig()
    """The number of engines, and the treatment of those that fail."""
    rewards: RewardSections = Field(default={})
    """Rewards by name, computed when a session is closed whose client gave none."""
    host: str = "127.0.0.1"
    """The address to bind to; any other than loopback gets a key for opening sessions."""
    hosts: tuple[str, ...] = ()
    """Names besides this machine's that a request's Host header may have, such as a service's."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The port; 0 takes a free one."""
    admin_key: str | None = None
    """The key that opening a session needs."""
    tls_certificate: PathText | None = None
    """Serve HTTPS with this certificate (a PEM file, those of intermediate authorities after it); None is HTTP."""
    tls_key: PathText | None = None
    """The certificate's private key (a PEM file without a password)."""
    store: str = "sessions.db"
    """The file in which sessions are kept; open ones are continued. The keys' secret is next to it, in NAME.secret."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that serve sessions, each on a port of its own behind `port`; more than one needs `engine.url` or
    `fleet.urls`. A session stays with its worker."""
    retry_detection: Literal["lost", "marked", "all"] = "lost"
    """The identical requests that are retries and get the stored reply again: `lost`, those that say so or whose reply
    was lost; `marked`, only those that say so; `all`, every one. Each other one gets a new sample."""
    strict_fields: bool = False
    """Refuse a request with a field that its protocol doesn't know; else a harmless one is ignored and counted."""
    forward: ForwardConfig = ForwardConfig()
    """The server to which requests for other models, such as embeddings, are sent; as `gateway.forward` of a run."""
    image_urls: ImageUrlsConfig = ImageUrlsConfig()
    """Images at URLs that clients send, as `gateway.image_urls` of a run; by default none is fetched."""
    exclude: tuple[ExclusionRule, ...] = (ONE_TURN,)
    """Roots of a session's tree that are neither trained on nor credited, as `gateway.exclude` of a run."""
    tracing: str | None = Field(default=None, pattern=r"^https?://[^\s/]+")
    """A collector that gets OpenTelemetry spans of turns over OTLP/HTTP, such as http://127.0.0.1:4318; None: there are
    no spans; see docs/metrics.md."""
    log: PathText | None = None
    """A file to which what is logged is added as JSON lines; None: warnings go to standard error alone."""

    @model_validator(mode="after")
    def _sessions_are_scored_alone(self) -> ServeConfig:
        if found := [name for name, each in self.rewards.items() if isinstance(each, GroupRewardConfig)]:
            raise ValueError(f"rewards.{found[0]} compares siblings, and a served session has no siblings")
        return self


def check_config(config: ServeConfig) -> Path:
    """Check the settings, before anything heavy is imported or started; returns the model's folder.

    Raises:
        ConfigError: sessions can't be kept at `store`, or the log at `log`, nothing can listen at `host` and `port`, or
            `tls_certificate` and `tls_key` don't fit.
        UnknownName, InvalidInput: no such model, renderer or engine.
    """
    for port in [config.port, *worker_ports(config)]:
        try:
            family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind((config.host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"host={config.host} port={port}: nothing can listen there: {error}{port_advice(error)}"
            ) from None
    tls_of(config)
    if config.log is not None:
        try:
            Path(config.log).open("ab").close()
        except OSError as error:
            raise ConfigError(f"log={config.log!r}: can't write there: {error.strerror}") from None
    if config.workers > 1:
        _check_workers(config)
    check_engine(config.engine, config.fleet)
    path = model_folder(config.model)
    get_renderer(path, config.model.renderer, config.model.stop)
    try:
        Store(Path(config.store)).close()
    except StoreError as error:
        raise ConfigError(f"store={config.store!r}: {error}") from None
    return path


def tls_of(config: ServeConfig) -> Tls | None:
    """Return the TLS of HTTPS; None where it is HTTP.

    Raises:
        ConfigError: the files can't be read, or are no certificate and its key.
    """
    from agentrl.sessions.gateway.http.tls import Tls

    return Tls.of(config.tls_certificate, config.tls_key)


def worker_ports(config: ServeConfig) -> list[int]:
    """The port of each worker: those behind `port`, or free ones (0) where that is 0; none for a single process."""
    if config.workers == 1:
        return []
    return [config.port + 1 + number if config.port else 0 for number in range(config.workers)]


def _check_workers(config: ServeConfig) -> None:
    """Reject what several processes can't share."""
    if not getattr(config.engine, "url", None) and not config.fleet.urls:
        raise ConfigError(
            f"workers={config.workers} needs an engine that runs already, to which every worker attaches: set "
            f"engine.url=… (engine=sglang or vllm) or fleet.urls=…; engine={config.engine.name} without an address "
            "would be started in every worker"
        )
    if config.store == ":memory:":
        raise ConfigError(f"store=':memory:' can't be shared by workers={config.workers}: name a file")


@contextmanager
def _observe(config: ServeConfig, *keys: str | None) -> Iterator[None]:
    """Send the spans and the log of the block where the settings say, without their secrets and these keys."""
    name = Path(config.store).stem
    secrets = {*secret_values(config), *filter(None, keys)}
    logged = nullcontext() if config.log is None else logs.write_log(Path(config.log), name, secrets)
    with logged, tracing.export_spans(config.tracing, {"agentrl.run": name}, logger.warning):
        yield


async def serve_config(
    config: ServeConfig,
    path: Path,
    announce: Callable[[str], object],
    *,
    admin_key: str | None = None,
    bound: socket.socket | None = None,
    shard: SessionShard | None = None,
) -> None:
    """Serve in this process until cancelled, or until no engine is left.

    Args:
        config: the settings.
        path: the model's folder.
        announce: is called with the address, once there is one.
        admin_key: what opening a session needs, where the settings name nothing.
        bound: a socket that listens already.
        shard: which sessions belong to this process; None is all of them.

    Raises:
        InfraError: the address is taken.
        EngineError: the engine has failed permanently.
    """
    from agentrl.sessions.gateway import Limits, serve
    from agentrl.sessions.gateway.gateway import persistent_secret
    from agentrl.sessions.gateway.http.image_urls import image_limits

    cancel_on(signal.SIGTERM)
    async with open_rewards(Env, config.rewards) as make_env:
        score = partial(_score, make_env) if config.rewards else None
        with _observe(config, admin_key), Store(Path(config.store)) as store:
            async with _starting(make_engines(config.engine, config.fleet, WeightsConfig(), path)) as engine:
                await serve(
                    engine,
                    get_renderer(path, config.model.renderer, config.model.stop),
                    store,
                    host=config.host,
                    port=config.port,
                    hosts=config.hosts,
                    admin_key=config.admin_key or admin_key,
                    model=config.model.name,
                    retry_detection=config.retry_detection,
                    limits=Limits(strict_fields=config.strict_fields, images=image_limits(config.image_urls)),
                    secret=None if config.store == ":memory:" else persistent_secret(Path(config.store)),
                    strip_reasoning=config.model.reasoning == "strip",
                    exclude=config.exclude,
                    forward=config.forward,
                    announce=announce,
                    own_process=True,
                    bound=bound,
                    tls=tls_of(config),
                    shard=shard,
                    score=score,
                )


@asynccontextmanager
async def _starting(engine: Engine) -> AsyncIterator[Engine]:
    """Wait for an engine to start beside what is done in the meantime; its failures are in its health."""
    starting = asyncio.ensure_future(wait_until_started(engine))
    try:
        yield engine
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await engine.close()


async def _score(make_env: Callable[[], Env], session: Session) -> None:
    """Set a session's rewards; there is no run that a mistake in a reward could stop, so it is the session's error."""
    try:
        await give_rewards(make_env(), session)
    except AgentRLError as error:
        session.status, session.error = Status.INFRA_ERROR, error_text(error)
