"""Engines as plug-ins: settings, a factory, and what can be checked before there is a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl.common import cores
from agentrl.config import EngineConfig
from agentrl.errors import ConfigError
from agentrl.rollout.engines.servers import options
from agentrl.rollout.engines.servers.images import ServedVision
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.types import Engine, Tokenizer

EngineFactory = Callable[[Path, Any, Tokenizer | None], Engine]
"""Builds an engine from a Hugging Face folder, its settings, and a tokenizer (None: the folder's own)."""


class EnginePlugin:
    """An engine as a plug-in; modules hold one as `ENGINE`. Importing it needs none of the engine's libraries.

    Attributes:
        settings: the class of its section of the configuration (`engine.*`).
        records_supports: whether its turns bring what their tokens were drawn from (`attachments.support`).
        scheduler_cores: CPU cores that each engine keeps busy beside its `settings.threads`.
    """

    settings: type[EngineConfig] = EngineConfig
    records_supports: bool = False
    scheduler_cores: int = 0

    def make(self, path: Path, config: Any, tokenizer: Tokenizer | None = None) -> Engine:
        """Build an engine.

        Args:
            path: the Hugging Face folder of the model that it serves.
            config: an instance of `settings`.
            tokenizer: None is the folder's own.

        Raises:
            MissingExtra: its libraries are not installed.
        """
        raise NotImplementedError

    def check(self, config: Any, urls: Mapping[str, str]) -> None:
        """Refuse settings that no engine can be made from, before there is a model.

        Args:
            config: an instance of `settings`.
            urls: addresses of running servers to attach to, by the setting that gives each.

        Raises:
            ConfigError: there is no such device, interpreter or address.
            MissingExtra: what it needs is not installed.
        """

    def begin(self, config: Any) -> None:
        """Begin, in the background, what its engines will wait for and what needs no model; `check` has passed."""

    def share_cores(self, processes: int, folder: Path) -> int:
        """Return how many threads each of its processes has on CPUs by default, where so many compute this folder."""
        return max(1, cores.share(processes, folder) - self.scheduler_cores)

    def records_penalties(self, config: Any) -> bool:
        """Return whether its turns bring what their tokens were drawn from with penalties on the tokens so far."""
        return False

    def takes_images(self, config: Any, folder: Path) -> bool:
        """Return whether prompts of the folder's model, which sees, may have images (`Capabilities.inputs`)."""
        return False

    def keeps_to_calls(self, config: Any) -> bool:
        """Return whether its engines can draw tool calls under a grammar (`Capabilities.lark`)."""
        return False

    def in_process(self, config: Any) -> bool:
        """Return whether its engines run in this process: a single one needs no fleet that watches it."""
        return False

    def transport(self, config: Any) -> str:
        """The weight transport that suits it, which `weights.transport=auto` stands for."""
        return "disk"

    def takes(self, config: Any) -> frozenset[str]:
        """Return the kinds of smaller parts that its engines take in the whole weights' place ("adapter")."""
        return frozenset()

    def beside_trainer(self, config: Any) -> Any:
        """Return its settings for a run that trains while it generates."""
        return config

    def ranks(self, config: Any) -> int:
        """Worker ranks of one engine, each of which receives weights."""
        return 1

    def sleeping(self, config: Any) -> Any:
        """Return its settings for `fleet.colocated`: engines give their GPU memory back and take it again.

        Raises:
            ConfigError: it can't do that.
        """
        raise ConfigError(
            f"fleet.colocated=true needs an engine that can sleep (sglang, vllm), and engine={config.name} can't"
        )

    def kernel(self, config: Any) -> str:
        """Return the name of what its engines compute by, where there are several with bits of their own."""
        return ""

    def proves(self, config: Any) -> bool:
        """Return whether it computes models itself, so that it is compared with transformers on a small one first."""
        return False


class EngineFactoryPlugin(EnginePlugin):
    """A class or function that makes an engine, used as a plug-in; its attribute `settings` counts if it has one."""

    def __init__(self, factory: EngineFactory) -> None:
        self.factory = factory
        self.settings = getattr(factory, "settings", EngineConfig)

    def make(self, path: Path, config: Any, tokenizer: Tokenizer | None = None) -> Engine:
        return self.factory(path, config, tokenizer)


class ServerPlugin(EngineFactoryPlugin):
    """An engine over an inference server in a process of its own, started here or attached to by its address.

    The factory's own `settings`, if it has any, are a subclass of `ServerConfig`.
    """

    def __init__(
        self,
        factory: EngineFactory,
        packages: Sequence[str],
        supported: tuple[tuple[int, ...], tuple[int, ...]],
        *,
        ranks: Sequence[Sequence[str]] = (),
        sleep_option: str | None = None,
        scheduler_cores: int = 0,
        records_supports: bool = False,
        records_penalties: Callable[[ServerConfig], bool] = lambda _config: False,
        keeps_to_calls: Callable[[ServerConfig], bool] = lambda _config: False,
        takes_images: Callable[[ServerConfig, ServedVision], bool] = lambda _config, _vision: False,
    ) -> None:
        """Build a plug-in.

        Args:
            factory: the engine's class.
            packages: the Python packages of which one brings the server.
            supported: the server's versions: from the first on, below the second.
            ranks: the server's options whose product is its number of worker ranks, each with its other names.
            sleep_option: the server's option with which it can give its memory back; None: it can't.
            scheduler_cores: see `EnginePlugin`.
            records_supports: see `EnginePlugin`.
            records_penalties: see `EnginePlugin`.
            keeps_to_calls: see `EnginePlugin`.
            takes_images: see `EnginePlugin`; of models that `servers.images` knows.
        """
        super().__init__(factory)
        self._records_penalties, self._keeps_to_calls = records_penalties, keeps_to_calls
        self._takes_images = takes_images
        self.records_supports = records_supports
        self.settings = getattr(factory, "settings", ServerConfig)
        self.packages, self.supported = packages, supported
        self.rank_options, self.sleep_option, self.scheduler_cores = ranks, sleep_option, scheduler_cores

    def check(self, config: ServerConfig, urls: Mapping[str, str]) -> None:
        """Addresses must be HTTP URLs; without one, the server must be installed for `engine.python`."""
        for setting, url in urls.items():
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError(f"{setting}={url!r} is no address of a server; it looks like http://host:port")
        if not urls:
            options.check_version(options.interpreter(config), self.packages, *self.supported)

    def records_penalties(self, config: ServerConfig) -> bool:
        """Return whether the server, started or attached to with these settings, counts as its rule says."""
        return self._records_penalties(config)

    def takes_images(self, config: ServerConfig, folder: Path) -> bool:
        vision = ServedVision.read(folder)
        return vision is not None and self._takes_images(config, vision)

    def keeps_to_calls(self, config: ServerConfig) -> bool:
        """Return whether the server has grammars of llguidance with these settings."""
        return self._keeps_to_calls(config)

    def takes(self, config: ServerConfig) -> frozenset[str]:
        return frozenset({"adapter"} if config.adapter_rank else ())

    def ranks(self, config: ServerConfig) -> int:
        found = 1
        for names in self.rank_options:
            values = (config.server.get(name, config.server.get(name.replace("_", "-"))) for name in names)
            found *= next((value for value in values if isinstance(value, int)), 1)
        return found

    def sleeping(self, config: ServerConfig) -> ServerConfig:
        if self.sleep_option is None:
            return super().sleeping(config)  # type: ignore[no-any-return]
        if options.platform(config) == "cpu":
            raise ConfigError(f"fleet.colocated=true: engine={config.name} has no GPU memory to give back on a CPU")
        return config.model_copy(update={"colocated": True, "server": {self.sleep_option: True, **config.server}})
