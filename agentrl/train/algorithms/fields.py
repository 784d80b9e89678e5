"""Declared fields of forests: numbers for each token that an algorithm or a loss needs besides the built-in ones.

Who needs a field declares it (`Algorithm.fields`, `PolicyLoss.fields`). Packing asks the declaration for its values;
slicing, padding, devices and ranks treat every declared field alike, and the loss reads it as `Tokens.fields[name]`.
A forest's rank has the field of all its tokens; with context parallelism rows follow their predictors, as all rows do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentrl.errors import InvalidInput
from agentrl.types import Node, Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

Fill = Callable[[Session, Node], Any]
"""A function that returns a field's values for a node's tokens, or one for all of them; None: nothing is known."""


@dataclass(frozen=True, slots=True)
class ForestField:
    """A field of forests.

    Attributes:
        name: its key in `Tokens.fields`.
        fill: its values, by the scope: of each token of the node, of the node, or of the session (asked with its first
            node). Of a token that several sessions share, the first one's count.
        dtype: a numpy name.
        scope: what has one value.
        shape: of one value.
        ragged: a value is a list of any length, such as the ids that a token was drawn from; `shape` is then of an
            entry of that list.
        padding: the number where nothing is known; a ragged value is empty there.
        apart: trained tokens are computed once only where their values are equal too.
    """

    name: str
    fill: Fill
    dtype: str = "float32"
    scope: Literal["token", "node", "session"] = "token"
    shape: tuple[int, ...] = ()
    ragged: bool = False
    padding: float = 0
    apart: bool = False

    def of_node(self, session: Session, node: Node) -> list[NDArray[Any]]:
        """The values of a node's tokens.

        Raises:
            InvalidInput: `fill` returned another number of values, or others than declared.
        """
        count = len(node.token_ids)
        given = self.fill(session, session.nodes[0] if self.scope == "session" else node)
        if given is None:
            return [self.unknown] * count
        if self.scope != "token":
            return [self._value(given, session, node)] * count
        if len(given) != count:
            raise InvalidInput(f"{self._at(session, node)}: {len(given)} values for {count} tokens")
        if (together := self._values(given)) is not None:
            return list(together)
        return [self._value(value, session, node) for value in given]

    @property
    def unknown(self) -> NDArray[Any]:
        """The value of a token of which nothing is known."""
        import numpy as np

        return np.full((0, *self.shape) if self.ragged else self.shape, self.padding, dtype=self.dtype)

    def _values(self, given: Any) -> NDArray[Any] | None:
        """All tokens' values in one array; None where they are ragged, or one of them is not as declared."""
        import numpy as np

        if self.ragged:
            return None
        try:
            values = np.asarray(given, dtype=self.dtype)
        except (TypeError, ValueError, OverflowError):
            return None
        return values if values.shape == (len(given), *self.shape) else None

    def _value(self, given: Any, session: Session, node: Node) -> NDArray[Any]:
        import numpy as np

        try:
            value = np.asarray(given, dtype=self.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"{self._at(session, node)}: {error}") from error
        if self.ragged and not value.size:
            return self.unknown
        if (value.shape[1:] if self.ragged and value.ndim else value.shape) != self.shape or (
            self.ragged and not value.ndim
        ):
            raise InvalidInput(f"{self._at(session, node)}: a value has the shape {value.shape}, declared {self.shape}")
        return value

    def _at(self, session: Session, node: Node) -> str:
        return f"forest field {self.name!r}, session {session.id!r}, node {node.id}"


class FieldValues:
    """The values of declared fields by node, each asked for once.

    Raises:
        InvalidInput: two fields have one name.
    """

    def __init__(self, fields: Sequence[ForestField]) -> None:
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise InvalidInput(f"forest fields must have different names, not {sorted(names)}")
        self.fields = tuple(fields)
        self._apart = tuple(field for field in fields if field.apart)
        self.has_apart = bool(self._apart)
        self._known: dict[tuple[str, str, int], list[NDArray[Any]]] = {}

    def of_node(self, field: ForestField, session: Session, node: Node) -> list[NDArray[Any]]:
        """A field's values of a node's tokens."""
        key = (field.name, session.id, node.id)
        if key not in self._known:
            self._known[key] = field.of_node(session, node)
        return self._known[key]

    def apart(self, session: Session, node: Node) -> list[tuple[bytes, ...]]:
        """For each token of a node, the values in which tokens that are computed once are equal; empty without any."""
        columns = [[value.tobytes() for value in self.of_node(field, session, node)] for field in self._apart]
        return list(zip(*columns, strict=True))
