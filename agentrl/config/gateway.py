"""The section of a run's own gateways, which its agent programs use."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, SecretStr

from agentrl.config.sections import PathText, Section

NODE = "node"
"""As `gateway.host`: the address of the node that the gateway is on."""


ONE_TURN = "one_turn"
"""The rule of `exclude` for roots without tools on which no turn follows another, where another root has tools."""


def _rule(rule: str) -> str:
    """A rule of `exclude`."""
    name, equals, pattern = rule.partition("=")
    if rule == ONE_TURN:
        return rule
    if not equals or not (name in ("prompt", "tools") or re.fullmatch(r"header\.[\w-]+", name)):
        raise ValueError(f"{rule!r} is none of {ONE_TURN}, prompt=PATTERN, tools=PATTERN and header.NAME=PATTERN")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{rule!r}: {pattern!r} is no regular expression: {error}") from None
    return rule


ExclusionRule = Annotated[str, AfterValidator(_rule)]
"""The roots of a session's tree that are excluded from training: `one_turn`, or `prompt=`, `tools=` or `header.NAME=`
with a regular expression."""


class ForwardConfig(Section):
    """Address for requests to other models than the trained one, such as embeddings."""

    only_with: ClassVar[Mapping[str, str]] = dict.fromkeys(("models", "key"), "url")
    url: str | None = Field(default=None, pattern=r"^https?://[^\s/]+")
    """The base URL of a server with OpenAI's API, such as http://127.0.0.1:9000/v1; None forwards nothing."""
    models: tuple[str, ...] = ()
    """The names of the models whose requests are sent there. Requests for any other name are answered here."""
    key: SecretStr | None = None
    """The key that the server is given; clients' keys never are."""


class ImageUrlsConfig(Section):
    """Images that clients name by a URL of the network. Without hosts none is fetched, and such a URL is refused."""

    only_with: ClassVar[Mapping[str, str]] = dict.fromkeys(("timeout", "max_bytes"), "hosts")
    hosts: tuple[Annotated[str, Field(pattern=r"^(\*|(\*\.)?[\w.:-]+)$")], ...] = ()
    """The hosts from which images are fetched: names, `*.DOMAIN`, or `*` for all. An address that is not public is
    reached only where it is listed itself."""
    timeout: float = Field(default=10.0, gt=0)
    """Seconds within which an image must have come."""
    max_bytes: int = Field(default=20 << 20, ge=1, le=20 << 20)
    """The largest file that is fetched."""


class GatewayConfig(Section):
    """Address and limits of the gateway of agent programs (`agent=`).

    There is one in each process that plays sessions, or in each gateway worker (`cluster.gateways`).
    """

    host: str = "127.0.0.1"
    """The address that it binds to. `node`: the one by which other nodes of the cluster reach its node, for programs
    that run elsewhere, such as in sandboxes; 0.0.0.0: all addresses."""
    name: str | None = Field(default=None, pattern=r"^[\w.:-]+$")
    """The host name or address that programs are given, as it is in the certificate; None: `host`, and with 0.0.0.0 the
    node's address."""
    tls_certificate: PathText | None = None
    """Serve HTTPS with this certificate (a PEM file, those of intermediate authorities after it); None is HTTP."""
    tls_key: PathText | None = None
    """The certificate's private key (a PEM file without a password)."""

    sampling: Literal["run", "client"] = "run"
    """The source of the temperature, top-p, top-k, min-p, penalties, logit bias and seed of a program's turns.
    `run`: those of `rollout` (in evaluations of `eval`); what a program sends is ignored, counted and told.
    `client`: what it sends, its seed mixed with session and sample; turns drawn from less than the whole vocabulary
    are trained where the engine records what was left."""

    forward: ForwardConfig = ForwardConfig()
    """The server to which requests for other models, such as embeddings, are sent; nothing of them is stored or
    trained."""
    image_urls: ImageUrlsConfig = ImageUrlsConfig()
    """Images at URLs that clients send; by default none is fetched."""
    exclude: tuple[ExclusionRule, ...] = (ONE_TURN,)
    """Roots of a session's tree that are neither trained on nor credited; a rule each. `one_turn`: one without tools on
    which no turn follows another, where another root has tools (a title); `prompt=`, `tools=` or `header.NAME=` and a
    regular expression, which is found in the text before the root's first turn, in the names of its tools (joined by
    commas), or in that header of the request that began it. All roots together are never excluded."""

    @property
    def on_loopback(self) -> bool:
        """True if it is reached from its own machine alone."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether an address, or `localhost`, is that of whatever machine uses it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
