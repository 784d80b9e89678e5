"""The gateway's limits: sizes, numbers, seconds and fields. Each of its waits is limited by one of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentrl.errors import ConfigError

MOST_IMAGES = 64
"""`ImageLimits.most` of models that see images."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits on the images of a request that no earlier one of its session had; false where there may be none.

    Attributes:
        most: how many there may be; 0: the model takes text only.
        fetch: returns the data URL of an image at a URL of the network, or raises InvalidInput; None: such URLs are
            refused.
    """

    most: int = 0
    fetch: Callable[[str], str] | None = None

    def __bool__(self) -> bool:
        return self.most > 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a client may request, and on how long a request may take.

    Deadlines nest: a turn ends before its session expires.
    """

    body_bytes: int = 32 * 1024 * 1024
    """The largest request body, in bytes."""
    head_bytes: int = 64 * 1024
    """The largest head of a request: its address and header fields."""
    body_timeout: float = 30.0
    """Seconds within which a request's head must arrive, and then its body."""
    send_timeout: float = 30.0
    """Seconds for which a client may leave a part of the reply unread before its connection is closed."""
    in_flight: int = 512
    """Requests in progress in all; more get 429 and Retry-After."""
    session_in_flight: int = 64
    """Requests in progress in one session."""
    messages: int = 10_000
    """Messages of a request that no earlier one of its session had in the same text; more get 413."""
    depth: int = 100
    """Objects and arrays within each other, in a request's parameters (schemas among them)."""
    choices: int = 16
    """The largest `n` of a request."""
    turn_tokens: int = 4096
    """New tokens of a turn whose request sets no limit."""
    temperature: float = 1.0
    """Sampling temperature of a request that sets none, or of all (`sampling`)."""
    top_p: float = 1.0
    """Nucleus sampling (`top_p`) of a request that sets none, or of all."""
    top_k: int | None = None
    """As many of the most probable tokens (`top_k`) are sampled from, in a request that sets none, or in all."""
    min_p: float = 0.0
    """The least probability (`min_p`), as a fraction of the greatest, of a request that sets none, or of all."""
    repetition_penalty: float = 1.0
    """The repetition penalty of a request that sets none, or of all."""
    images: ImageLimits = field(default_factory=ImageLimits)
    """Images of a request. The gateway of a model that sees them sets `most` to `MOST_IMAGES`, unless it is set."""
    sampling: Literal["client", "mixed", "run"] = "client"
    """The source of temperature, truncation, penalties, logit bias and seed: the client; the client, whose seeds are
    mixed with session, sample and path; or the values set here, while the client's are ignored."""
    turn_timeout: float = 120.0
    """Seconds that one turn may take."""
    session_timeout: float = 24 * 3600.0
    """Seconds after which a session that is still open is closed as ABORTED."""
    reward_deadline: float = 300.0
    """Seconds after a session's close in which it still accepts rewards."""
    sessions: int = 10_000
    """Sessions open at once; more get 429."""
    strict_fields: bool = False
    """Reject a request with a field that its protocol doesn't know; else a harmless one is ignored."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name in ("images", "sampling", "strict_fields") or value is None:
                continue
            if not (value > 0 or (name in ("temperature", "min_p") and value == 0)):
                raise ConfigError(f"{name}={value!r} must be above 0")
        if not self.turn_timeout < self.session_timeout:
            raise ConfigError(
                f"deadlines must nest: turn_timeout < session_timeout, not {self.turn_timeout:g} < "
                f"{self.session_timeout:g} (seconds)"
            )

    def of_model(self, tokenizer: Any) -> Limits:
        """Return the limits of a model with this tokenizer, which says whether it sees images."""
        if getattr(tokenizer, "images", None) is None:
            return replace(self, images=ImageLimits())
        return replace(self, images=replace(self.images, most=self.images.most or MOST_IMAGES))

    @property
    def drawn(self) -> dict[str, float | None]:
        """Return what decides how tokens are drawn, by the names of requests' fields."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: getattr(self, name) for name in names}
