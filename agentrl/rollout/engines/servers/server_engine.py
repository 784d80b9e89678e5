"""The common part of engines over inference servers besides `remote`: start or attach, and checks.

A server is a class of constants (name, packages, versions) and a few methods: its command, environment and options,
what it says about itself, and how it generates, scores, pauses and loads.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from agentrl import cluster
from agentrl.attachments import images, routed_experts, support
from agentrl.cluster.server import ServerProcess, free_port
from agentrl.common.scratch import ScratchFolder
from agentrl.config.gateway import is_loopback
from agentrl.errors import ConfigError, EngineError
from agentrl.models.adapters import SETTINGS
from agentrl.rollout.engines.checks import check_sampled
from agentrl.rollout.engines.reach import EngineAddress, EngineClient
from agentrl.rollout.engines.servers import options
from agentrl.rollout.engines.servers.adapters import ServedAdapters
from agentrl.rollout.engines.servers.grammar_mask import ServerGrammars
from agentrl.rollout.engines.servers.images import HeldImages
from agentrl.rollout.engines.servers.open_request import OpenRequest
from agentrl.rollout.engines.servers.placed_server import PlacedServer, on_nodes
from agentrl.rollout.engines.servers.remote import RemoteEngine, logger
from agentrl.rollout.engines.servers.server_settings import OptionValue, ServerConfig
from agentrl.types import Capabilities, PauseMode, Sampling, Tokenizer

HOST = "127.0.0.1"
_ROUNDING = 1e-2
"""The most that a log-probability may be above 0: servers compute them in low precision."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's description of itself.

    Attributes:
        max_context: tokens of its longest path; None: it does not say.
        weights: what its weights are called; not a number for weights that agentrl did not load.
        incremental: each event of a stream has only what is new.
        listed: of how many of the tokens that one was drawn from it can tell; 0: it does not tell.
        counts: it counts the tokens so far for penalties as its rule says.
        lark: it has llguidance's grammars.
        images: it takes images with a prompt, where the model's are taken.
    """

    max_context: int | None
    weights: str
    incremental: bool = True
    listed: int = 0
    counts: bool = True
    lark: bool = True
    images: bool = False


@dataclass(frozen=True)
class ServerReach:
    """`reach.Reach` of a server that is ready.

    Attributes:
        path: the model's folder, which other nodes see as well.
        config: the engine's section, with the server's address and key.
        info: what the server says about itself.
    """

    path: Path
    config: ServerConfig
    info: ServerInfo

    async def open(self) -> EngineClient:
        from agentrl.rollout.engines import make_engine

        engine: Any = await asyncio.to_thread(make_engine, self.config, self.path)
        engine.assume_ready(self.info)
        found: EngineClient = engine
        return found


class _Client(Protocol):
    """The common part of both clients."""

    url: str

    def set_url(self, url: str) -> None:
        """Call the server at another address from now on."""

    async def set_version(self, version: int) -> None:
        """Call the weights as they are `version`."""

    async def close(self) -> None: ...


class ServerEngine(RemoteEngine):
    """`agentrl.types.Engine` over an inference server that is ours, or that runs already (`engine.url`).

    The tokenizer is not needed: the server has the folder's own.

    Attributes:
        name: the engine's name.
        packages: Python packages of which one brings the server.
        supported: its versions: from the first on, below the second.
        owned: its options that belong to a setting of ours, and which.
        no_experts_on_cpu: why it can't record routed experts on a CPU.
        client: its HTTP calls.
        launched: its options, where it is ours.
        info: what its server says about itself; None before it is ready.
        held: images whose numbers it has had.

    Raises:
        MissingExtra: the server is not installed for `engine.python`.
        ConfigError: it is a version that is not supported, or an option that has a setting of its own.
        EngineError: the folder holds no model.
    """

    name: ClassVar[str]
    packages: ClassVar[Sequence[str]]
    supported: ClassVar[tuple[tuple[int, ...], tuple[int, ...]]]
    owned: ClassVar[Mapping[str, str]]
    no_experts_on_cpu: ClassVar[str]
    client: Any

    def __init__(self, path: Path, config: ServerConfig | None = None, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(path, config or ServerConfig(name=self.name))
        placed = self.config.url is None and cluster.current().name != "local"
        self.config = on_nodes(self.config)
        self.platform = options.platform(self.config)
        if self.config.routed_experts and self.platform == "cpu" and self.config.url is None:
            raise ConfigError(
                f"engine.routed_experts=true: {self.name} can't record them on a CPU, {self.no_experts_on_cpu}; "
                "use a GPU, or engine=local"
            )
        self.launched: dict[str, OptionValue] = {}
        self.info: ServerInfo | None = None
        self.held = HeldImages()
        self.client = self._place() if placed else self._connect(self.config.url or self._launch(), self.config.api_key)
        most = self._max_context()
        self._capabilities = Capabilities(
            name=self.name,
            max_context=min(self.config.max_context or most, most),
            vocab_size=self.facts.vocab_size,
            deterministic=self.config.deterministic and self.config.url is None and self._deterministic(),
            json_schema=True,
            lark=self._keeps_to_lark(),
            pause_modes=frozenset(PauseMode),
            attachments=frozenset(
                ([routed_experts.NAME] if self.config.routed_experts else [])
                + ([support.NAME] if self.config.support_bytes else [])
            ),
            cache_block=self._cache_block(),
            inputs=self._inputs(not self._no_images()),
        )
        self._id, self._count = uuid.uuid4().hex[:12], 0
        self.adapters: ServedAdapters | None = None
        if self.config.adapter_rank:
            self.adapters = ServedAdapters(self.client, self.path, self._reload, self._adapters_in_use)

    @property
    def node(self) -> str:  # type: ignore[override]
        """The cluster's node that its server is on."""
        return self.server.worker.node if isinstance(self.server, PlacedServer) else ""

    @property
    def reach(self) -> EngineAddress | None:
        """The server's address, unless that is this machine's alone and other processes are on others.

        There is none of a server with adapters: which of them are in use is known where all turns begin.
        """
        url, server = self.client.url, self.server
        alone = is_loopback(urlsplit(url).hostname or "") and self.config.url is not None
        if self.info is None or self.adapters is not None or (alone and cluster.current().name != "local"):
            return None
        key = server.key if isinstance(server, PlacedServer) else self.config.api_key
        found = {"url": url, "api_key": key, "device": "cpu" if self.platform == "cpu" else "cuda"}
        return ServerReach(self.path.absolute(), self.config.model_copy(update=found), self.info)

    def assume_ready(self, info: ServerInfo) -> None:
        """Generate by a server that another process has started or attached to, and asked for `info`."""
        self.info, self._started = info, True
        inputs = self._inputs(info.images)
        self._capabilities = replace(self._capabilities, lark=info.lark, inputs=inputs)

    def _inputs(self, takes: bool) -> frozenset[str]:
        return frozenset({images.NAME} if takes and self.vision is not None else ())

    # -------------------------------------------------------------------------------- what a server says

    @abstractmethod
    def _connect(self, url: str, api_key: str | None) -> _Client:
        """The client for a server's address, and the bearer token that it requires."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The command after `python -m`, up to the address and the options."""

    @abstractmethod
    def _environment(self) -> dict[str, str]:
        """Environment variables of a server of ours."""

    @abstractmethod
    def _options(self) -> dict[str, OptionValue]:
        """Options of a server of ours; `engine.server.*` goes above them."""

    @abstractmethod
    async def _release(self) -> str:
        """The version of a server that has just become ready."""

    @abstractmethod
    async def _info(self) -> ServerInfo:
        """Ask a server of a supported version; refuse one that lacks what is needed."""

    @abstractmethod
    def _deterministic(self) -> bool:
        """True where a server of ours on this platform keeps to seeds."""

    @abstractmethod
    def _keeps_to_lark(self) -> bool:
        """True where the server is known to have llguidance's grammars."""

    @abstractmethod
    def _lacks(self, sampling: Sampling, listed: int) -> str:
        """The option, with a value, without which a server that tells of so many tokens says nothing of these turns."""

    def _max_context(self) -> int:
        return self.facts.context

    def _cache_block(self) -> int:
        return 1

    # ---------------------------------------------------------------------------------------- starting

    def _launch(self) -> str:
        python = options.interpreter(self.config)
        options.check_version(python, self.packages, *self.supported)
        port = free_port(HOST)
        self.launched = options.merge(self._options(), self.config.server, self.owned)
        command = [python, "-m", *self._command(), "--host", HOST, "--port", str(port)]
        command += options.command_line(self.launched)
        log = None if self.config.log is None else Path(self.config.log)
        self.server = ServerProcess(self.name, command, self._environment(), log, self.config.threads)
        return f"http://{HOST}:{port}"

    def _place(self) -> _Client:
        """Have a node of the cluster start the server; the client gets its address once it is there."""
        from agentrl.rollout.engines import ENGINES

        options.merge({}, self.config.server, self.owned)
        ranks = ENGINES.find(self.config.name).ranks(self.config)
        server = PlacedServer(self.name, self.path, self.config, ranks, lambda url: self.client.set_url(url))
        self.server = server
        return self._connect("", server.key)

    async def _check_server(self) -> None:
        options.check_range(self.name, await self._release(), *self.supported)
        info = self.info = await self._info()
        wanted = self.capabilities.max_context
        if info.max_context is not None and wanted > info.max_context:
            raise EngineError(
                f"{self.name} takes paths of {info.max_context} tokens at most, and engine.max_context is {wanted}: "
                "lower it, or allow the server more (engine.server.*)"
            )
        version = info.weights
        if not version.isdigit():  # a server that ran before, whose weights have no number yet
            await self.client.set_version(0)
            version = "0"
        self._version = int(version)
        if self.config.deterministic and not self.capabilities.deterministic:
            where = f"on {self.platform}" if self.config.url is None else "with a server that agentrl did not start"
            logger.warning("engine=%s is not deterministic %s: sampling seeds are not kept to", self.name, where)

    async def _close_client(self) -> None:
        await self.client.close()

    def unrecorded(self, sampling: Sampling) -> str:
        """Return why the server does not tell what so sampled turns are drawn from."""
        lacks = self._lacks(sampling, self.info.listed) if self.info is not None and self.config.support_bytes else ""
        return f"the {self.name} server at {self.client.url} has to be started with {lacks}" if lacks else ""

    # ---------------------------------------------------------------------------------------- adapters

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Load the weights' adapter, where the server takes it; else see `RemoteEngine.publish`."""
        from agentrl.rollout.weights.buckets import ADAPTER, Weights, take_part
        from agentrl.rollout.weights.snapshot import is_like, write_part

        part = weights.parts.get(ADAPTER) if isinstance(weights, Weights) and self.adapters is not None else None
        if part is None or not is_like(self.path, part.shape.base):
            await super().publish(weights, version)
            return
        take_part(weights, ADAPTER)
        with ScratchFolder() as scratch:
            await self._bring(await asyncio.to_thread(write_part, part, scratch / "adapter"), version)

    async def load_folder(self, folder: Path, version: int) -> None:
        if self.adapters is None:
            await self._load(folder, version)
        elif (folder / SETTINGS).exists():
            base = json.loads((folder / SETTINGS).read_text())["base_model_name_or_path"]
            await self.adapters.add(folder, Path(base), version)
        else:
            await self.adapters.replace_base(folder)
        if self.adapters is not None:
            await self.client.set_version(version)
            self._version = version

    async def _reload(self, folder: Path) -> None:
        """Replace the base, once the turns that it would change have ended."""
        if self._open:
            await self._pause(PauseMode.ABORT)
            await self._idle(self.abort_seconds)
        await self._load(folder, self._version)

    def _adapters_in_use(self) -> set[str | None]:
        return {request.adapter for request in self._open}

    def _adapter(self) -> str | None:
        return None if self.adapters is None else self.adapters.current

    def _version_of(self, request: OpenRequest, noted: int) -> int:
        """The version of tokens that have just come: with adapters, that which the turn began with."""
        return noted if self.adapters is None else request.version

    # -------------------------------------------------------------------------------------- generating

    def _next_id(self) -> str:
        """A request's id at the server; none is the beginning of another."""
        self._count += 1
        return f"{self._id}{self._count:012x}"

    def _recorder(self, request: OpenRequest, rule: str) -> support.SupportRecorder | None:
        """Make the recorder of a request's supports; None where it wants none, or its tokens follow no known rule.

        Where a turn is continued, its earlier tokens are a prompt to a server: its grammar begins anew, and what that
        leaves is not what fits the turn. vLLM counts a turn's own tokens for presence and frequency anew as well, and
        scales by the repetition penalty after it has added a logit bias. SGLang counts the turn's own tokens alone, and
        exactly where `ServerInfo.counts`.
        """
        sampling = request.sampling
        begins = sampling.record_from(support.NAME)
        if begins is None or not self.config.support_bytes or sampling.temperature == 0 or sampling.full_support:
            return None
        continued = len(request.ids) > begins
        counted, own = bool(sampling.presence_penalty or sampling.frequency_penalty), rule == support.SGLANG
        biased = sampling.repetition_penalty != 1 and bool(sampling.logit_bias)
        if continued and (sampling.grammar or counted or (own and sampling.penalised)):
            return None
        if sampling.penalised and ((self.info is not None and not self.info.counts) or (biased and not own)):
            return None
        return support.SupportRecorder(self.facts.vocab_size, self.config.support_bytes, rule)

    @cached_property
    def _grammars(self) -> ServerGrammars:
        return ServerGrammars(self.path, self.facts.vocab_size)

    def _set_mask(self, request: OpenRequest) -> None:
        """Give a request a matcher of its grammar, where the server has the same grammars and filters nothing more."""
        sampling = request.sampling
        if request.support is None or not sampling.grammar or sampling.filtered or not self.capabilities.lark:
            return
        request.mask = self._grammars.mask(sampling)
        if request.mask is not None:
            request.support.rule = f"{request.support.rule}+{request.mask.library}"

    def _check_output(self, ids: Sequence[int], logprobs: Sequence[float | None]) -> None:
        """Refuse a piece of a turn without tokens of the vocabulary, and one finite log-probability for each."""
        check_sampled(ids, self.facts.vocab_size)
        if len(ids) != len(logprobs):
            raise EngineError(f"{self.name} sent {len(ids)} tokens with {len(logprobs)} log-probabilities")
        self._check_finite(logprobs)

    def _check_kept(self, ids: Sequence[int], kept: Sequence[Sequence[int]]) -> None:
        """Refuse a piece of a turn that lacks what each token was drawn from, or where that is of no token."""
        if len(ids) != len(kept):
            raise EngineError(f"{self.name} sent {len(ids)} tokens with {len(kept)} sets that they were drawn from")
        for one in kept:
            check_sampled(list(one), self.facts.vocab_size)

    def _check_finite(self, logprobs: Sequence[float | None]) -> None:
        """Refuse log-probabilities that are none; servers write -9999 where JSON has no infinity."""
        known = [value for value in logprobs if value is not None]
        whole = len(known) == len(logprobs) and all(map(math.isfinite, known))
        if not whole or min(known, default=0.0) <= -9999:
            raise EngineError(f"policy version {self._version} gives log-probabilities that are not finite")
        if max(known, default=0.0) > _ROUNDING:
            raise EngineError(f"policy version {self._version} gives log-probabilities above 0: {max(known)}")
