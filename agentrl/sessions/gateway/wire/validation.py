"""The names and kinds of a request's parameters; `objects` reads the conversation.

The tables here say which names there are, and not the SDKs, which take two seconds to import. What a parameter holds is
checked by who reads it, as far as it is read: a value or a field that is new is refused only where it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentrl.errors import nearest
from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.wire.fields import CHANGE_TEXT, SAMPLING, called_here, find_misspelt
from agentrl.types import LEAST_TEMPERATURE

MOST_FIELDS = 200
"""Fields of a request: several times what any protocol has, and few enough to look each up among known names."""


_KINDS: Mapping[str, tuple[type, str]] = MappingProxyType(
    {
        **dict.fromkeys(("model", "instructions", "previous_response_id"), (str, "text")),
        **dict.fromkeys(("stream", "background", "store", "parallel_tool_calls"), (bool, "true or false")),
        **dict.fromkeys(("tools", "messages"), (list, "a list")),
        **dict.fromkeys(
            ("stream_options", "response_format", "text", "logit_bias", "output_config", "thinking"),
            (dict, "an object"),
        ),
    }
)
"""Parameters of one kind in every protocol; numbers, and what is inside, are checked where they are read."""


class Parameters:
    """The parameters of a protocol's requests: honoured, harmless, or with only one value here.

    Names may be of fields inside a parameter: "reasoning.summary".

    Args:
        required: names without which a request is refused.
        honoured: names that change the reply, and do so here.
        harmless: names that change nothing about what is generated here; they are accepted whatever they hold.
        fixed: names that are accepted with these values only; with none, refused.
        servers: names of other servers' that are honoured; where fields are strict, they are unknown.
        inside: the parameter that holds the conversation; it is read message by message.
    """

    def __init__(
        self,
        *,
        required: Sequence[str],
        honoured: Iterable[str],
        harmless: Iterable[str],
        fixed: Mapping[str, tuple[Any, ...]],
        servers: Iterable[str] = (),
        inside: str,
    ) -> None:
        self.servers = frozenset(servers)
        self._harmless, self._fixed, self.inside = frozenset(harmless), fixed, inside
        self._taken = {*honoured, inside, "model", "stream"}
        self._deep = {name.partition(".")[0] for name in (*self._harmless, *fixed) if "." in name}
        self.known = self._taken | {name.partition(".")[0] for name in (*self._harmless, *fixed)}
        self._required = required

    def check(self, body: Body, limits: Limits) -> tuple[dict[str, Any], dict[str, str]]:
        """The request's parameters; those that are null are left out, and so is the conversation.

        Args:
            body: the request.
            limits: whether the client's sampling decides, and whether a parameter that isn't known here is refused
                even where it changes nothing.

        Returns:
            The parameters that count, and those that were ignored, each with the name to count it under.

        Raises:
            ApiError: a parameter is unknown, not supported, or of the wrong type.
        """
        if len(body.fields) > MOST_FIELDS:
            raise ApiError(
                400, f"the body has {len(body.fields)} fields; at most {MOST_FIELDS} are read", "invalid_value"
            )
        given, ignored = {}, dict[str, str]()
        strict = limits.strict_fields
        own = {**SAMPLING, **limits.drawn}
        for name, value in body.fields.items():
            if value is None:
                continue
            if limits.sampling == "run" and name in own and (name in self.known or not strict):
                if value != own[name]:
                    ignored[name] = name
            elif name in self._harmless:
                ignored[name] = name
            elif name in self.servers and not strict:
                given[name] = value
            elif name not in self.known:
                self._unknown(name, strict)
                ignored[header_name(name)] = "unknown"
            elif name in self._fixed:
                given[name] = self._only(name, value)
            elif name in self._deep and isinstance(value, dict):
                given[name] = self._within(name, value, ignored)
            else:
                given[name] = value
        for name in self._required:
            if name not in given and (name != self.inside or body.history is None):
                raise ApiError(400, f"{name}: is required", "invalid_value", name)
        for name, value in given.items():
            kind = _KINDS.get(name)
            if kind is not None and not isinstance(value, kind[0]):
                raise ApiError(400, f"{name}={value!r:.100} must be {kind[1]}", "invalid_value", name)
        return given, ignored

    def _within(self, outer: str, value: Mapping[str, Any], ignored: dict[str, str]) -> dict[str, Any]:
        """The fields inside a parameter, without those that change nothing."""
        kept = {}
        for inner, one in value.items():
            name = f"{outer}.{inner}"
            if one is None:
                continue
            if name in self._harmless:
                ignored[name] = name
            else:
                kept[inner] = self._only(name, one) if name in self._fixed else one
        return kept

    def _only(self, name: str, value: Any) -> Any:
        """A value that is one of those that are possible here."""
        if any(value == one and type(value) is type(one) for one in self._fixed[name]):
            return value
        raise refuse_parameter(name, "only " + " or ".join(map(repr, self._fixed[name])) if self._fixed[name] else "")

    def _unknown(self, name: str, strict: bool) -> None:
        """Refuse a parameter that isn't known here, where it would change the sampled text or all are refused."""
        near = find_misspelt(name, (self.known - self._harmless) | CHANGE_TEXT)
        if not strict and near is None:
            return
        guess = called_here(near or name, self.known) or (near if near in self.known else None)
        if guess is None and near is None:  # what is known elsewhere is no other name's slip
            guess = nearest(name, self.known)
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise ApiError(400, f"unknown parameter {name[:100]!r}{hint}", "unknown_parameter", name[:100])


def number(body: Mapping[str, Any], name: str, default: Any, low: float, high: float, *, whole: bool = False) -> Any:
    """A number within bounds; ApiError where it is none, not a whole one where it must be, or lies outside."""
    value = body.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        kind = "a whole number" if whole else "a number"
        raise ApiError(400, f"{name}={value!r:.100} must be {kind}", "invalid_value", name)
    if not low <= value <= high:
        raise ApiError(400, f"{name}={value} must be between {low:g} and {high:g}", "invalid_value", name)
    return value


def flag(body: Mapping[str, Any], name: str, within: str = "") -> bool:
    """A field that is true or false, and false where it is left out or null; ApiError where it is something else."""
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise ApiError(400, f"{within}{name}={value!r:.100} must be true or false", "invalid_value", f"{within}{name}")
    return bool(value)


def temperature_of(body: Mapping[str, Any], limits: Limits) -> float:
    """The sampling temperature; one that is as good as 0 is 0, since engines draw differently below the least one."""
    value: float = number(body, "temperature", limits.temperature, 0, 2)
    return value if value >= LEAST_TEMPERATURE else 0.0


def header_name(name: str) -> str:
    """A client's own name for a field as it may stand in a header."""
    return name if len(name) <= 64 and name.isascii() and name.replace("-", "_").isidentifier() else "unknown"
