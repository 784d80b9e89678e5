"""Attachments of the kind `support`: the sets of tokens that the sampled tokens of a turn were drawn from.

A row is about one sampled token, the rows about the last ones of the path: the turn's own. A row is a code: nothing is
known (`UNKNOWN`), the set was longer than what may be stored (`OVERSIZE`), it lacked the drawn token (`OUTSIDE`), it
was the whole vocabulary (`FULL`) or the drawn token alone (`ONE`), or the number of a set, from `SETS` on. A set is
stored once, however many tokens were drawn from it, in whichever form is shortest: kept ids, excluded ids, or one bit
for each token of the vocabulary.

The bytes: a letter of the format, the name of the rule by which logits become the distribution (`RULES`), the
vocabulary's size, the sets, and the codes as runs. Ids are differences, and numbers take 7 bits to a byte. A turn's
data is complete; a store keeps long sets apart, so that turns which have the same share its bytes. Given up: sets
written as a part of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentrl.attachments import AttachmentKind
from agentrl.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "support"
UNKNOWN, OVERSIZE, OUTSIDE, FULL, ONE, SETS = range(6)
LOCAL, SGLANG, VLLM = "agentrl-1", "sglang-1", "vllm-2"
RULES = {
    LOCAL: "tokens that a grammar forbids are left out; repetition penalty on the tokens of prompt and turn; then "
    "presence and frequency penalties on the turn's own, and the logit bias, are added; divided by the temperature; "
    "top-k, top-p, min-p",
    SGLANG: "no penalties; the logit bias is added; divided by the temperature; the set is the server's own mask",
    "vllm-1": "no penalties; the logit bias is added; divided by the temperature; the set is what the server gives a "
    "log-probability",
    VLLM: "repetition penalty on the tokens of prompt and turn, not together with a logit bias; then presence and "
    "frequency penalties on the turn's own, and the logit bias, are added; divided by the temperature; the set is what "
    "the server gives a log-probability",
}
"""Rules by which logits become the distribution that a token is drawn from, by name and version.

Behind a rule's name and a plus a turn may name the library that said what its grammar forbids, with its version.
"""
_FORMAT, _SPLIT = b"S", b"P"
_SHARED = 96
"""The fewest bytes of a set that a store keeps apart: to name one takes 80."""
_KEPT, _EXCLUDED, _BITS = range(3)


def is_known(rule: str) -> bool:
    """Return whether log-probabilities can be computed by a rule, whichever library its grammar was kept to with."""
    return rule.partition("+")[0] in RULES


@dataclass(frozen=True, slots=True)
class Support:
    """The rows of a turn.

    Attributes:
        rule: the name of the rule (`RULES`) by which the rest of the distribution follows from the turn's sampling.
        vocabulary: its size.
        sets: as they are stored.
        codes: one for each row.
    """

    rule: str
    vocabulary: int
    sets: tuple[bytes, ...]
    codes: tuple[int, ...]

    def pack(self) -> bytes:
        """The rows as bytes; sets that no row names are left out."""
        return self._pack(_FORMAT, 0)

    def _pack(self, letter: bytes, apart: int) -> bytes:
        """The bytes behind a letter; sets of at least so many bytes, not 0, are left empty."""
        used = sorted({code for code in self.codes if code >= SETS})
        number = {code: SETS + place for place, code in enumerate(used)}
        out = bytearray(letter)
        name = self.rule.encode()
        out += _varint(len(name)) + name + _varint(self.vocabulary) + _varint(len(used))
        for code in used:
            stored = self.sets[code - SETS]
            stored = b"" if apart and len(stored) >= apart else stored
            out += _varint(len(stored)) + stored
        for code, run in _runs(self.codes):
            out += _varint(number.get(code, code)) + _varint(run)
        return bytes(out)

    def count_kept(self) -> list[int | None]:
        """Return from how many tokens each row's was drawn; None where that is not known.

        Raises:
            InvalidInput: a set holds what is no token of the vocabulary.
        """
        known: dict[int, int] = {ONE: 1, FULL: self.vocabulary}
        for code in {code for code in self.codes if code >= SETS}:
            ids = self.ids(code)
            known[code] = len(ids) if ids[0] >= 0 else self.vocabulary - len(ids)
        return [known.get(code) for code in self.codes]

    def ids(self, code: int) -> NDArray[np.int64]:
        """The set of a code from `SETS` on: the kept ids, ascending, or, where that is fewer, -1 - id of excluded ones.

        Raises:
            InvalidInput: it holds what is no token of the vocabulary.
        """
        import numpy as np

        stored = self.sets[code - SETS]
        kind, data = stored[0], stored[1:]
        if kind == _BITS:
            bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
            ids = np.flatnonzero(bits)
            kind = _KEPT
            if 2 * len(ids) > self.vocabulary:
                ids, kind = np.flatnonzero(bits[: self.vocabulary] == 0), _EXCLUDED
        else:
            ids = np.cumsum(_numbers(data)) - 1
        if not len(ids) or ids[-1] >= self.vocabulary or (np.diff(ids) <= 0).any():
            raise InvalidInput(f"a support's set holds what are no tokens of a vocabulary of {self.vocabulary}")
        return ids if kind == _KEPT else -1 - ids


class SupportRecorder:
    """Records the supports of a turn's tokens, while an engine draws them.

    Args:
        vocabulary: its size.
        limit: the most stored bytes of a turn's sets for each of its tokens. Where they take more, those that take
            most for each token drawn from them are left out, and such tokens are `OVERSIZE`.
        rule: see `Support`.
    """

    def __init__(self, vocabulary: int, limit: int, rule: str = LOCAL) -> None:
        self.vocabulary, self.limit, self.rule = vocabulary, limit, rule
        self._number: dict[bytes, int] = {}
        self._codes: list[int] = []

    def add(self, kept: NDArray[np.int64] | None, drawn: int) -> None:
        """Record what a token was drawn from: ascending ids, or None for the whole vocabulary."""
        if kept is None or len(kept) == self.vocabulary:
            self._codes.append(FULL)
        elif not len(kept) or kept[min(int(kept.searchsorted(drawn)), len(kept) - 1)] != drawn:
            self._codes.append(OUTSIDE)
        elif len(kept) == 1:
            self._codes.append(ONE)
        else:
            stored = _stored(kept, self.vocabulary)
            self._codes.append(self._number.setdefault(stored, SETS + len(self._number)))

    def add_ids(self, kept: Sequence[int] | None, drawn: int) -> None:
        """Record what a token was drawn from as a server lists it, in any order; None: it does not list all.

        The range of the vocabulary stands for all of it.
        """
        import numpy as np

        if kept is None:
            self._codes.append(UNKNOWN)
        elif kept == range(self.vocabulary):
            self._codes.append(FULL)
        else:
            self.add(np.unique(np.asarray(kept, dtype=np.int64)), drawn)

    def data(self) -> bytes:
        """The record so far."""
        sets, uses = tuple(self._number), Counter(self._codes)
        each = {SETS + place: len(stored) / uses[SETS + place] for place, stored in enumerate(sets)}
        left, long = self.limit * len(self._codes), set()
        for code in sorted(each, key=lambda code: each[code]):
            left -= len(sets[code - SETS])
            if left < 0:
                long.add(code)
        codes = tuple(OVERSIZE if code in long else code for code in self._codes)
        return Support(self.rule, self.vocabulary, sets, codes).pack()


def unpack(data: bytes) -> Support:
    """The rows of `Support.pack`.

    Raises:
        InvalidInput: these bytes are none.
    """
    return _unpack(data, _FORMAT)


def _unpack(data: bytes, letter: bytes) -> Support:
    """The rows behind a letter."""
    try:
        if data[:1] != letter:
            raise ValueError(f"they begin with {data[:1]!r}")
        length, at = _read(data, 1)
        rule, at = data[at : at + length].decode(), at + length
        vocabulary, at = _read(data, at)
        count, at = _read(data, at)
        sets = []
        for _ in range(count):
            length, at = _read(data, at)
            sets.append(data[at : at + length])
            at += length
            if at > len(data) or (sets[-1][0] > _BITS if sets[-1] else letter == _FORMAT):
                raise ValueError("a set is none")
        codes: list[int] = []
        while at < len(data):
            code, at = _read(data, at)
            run, at = _read(data, at)
            if code >= SETS + count or run > _MOST_ROWS - len(codes):
                raise ValueError("a run is none")
            codes += [code] * run
    except (ValueError, IndexError) as error:
        raise InvalidInput(f"{len(data)} bytes are no supports: {error}") from None
    return Support(rule, vocabulary, tuple(sets), tuple(codes))


_MOST_ROWS = 1 << 24


class SupportKind(AttachmentKind):
    """Rows of supports: each turn's data is complete, and attempts at a turn follow one another."""

    name = NAME
    of_turn = True

    def check(self, data: bytes, tokens: int) -> None:
        """Well formed, for no more tokens than the path has."""
        rows = len(unpack(data).codes)
        if rows > tokens:
            raise InvalidInput(f"supports of {rows} tokens; the path up to their end has {tokens}")

    def join(self, first: bytes | None, last: bytes | None, tokens: int) -> bytes | None:
        """Both one's rows; where one has none, nothing is known of its tokens."""
        if first is None:
            return last
        one = unpack(first)
        other = Support(one.rule, one.vocabulary, (), ()) if last is None else unpack(last)
        if (one.rule, one.vocabulary) != (other.rule, other.vocabulary):
            raise InvalidInput(
                f"supports of one turn are by two rules: {one.rule!r} and {other.rule!r}, "
                f"over {one.vocabulary} and {other.vocabulary} tokens"
            )
        number = {stored: SETS + place for place, stored in enumerate(one.sets)}
        moved = [number.setdefault(stored, SETS + len(number)) for stored in other.sets]
        gap = [UNKNOWN] * (tokens - len(other.codes))
        later = [moved[code - SETS] if code >= SETS else code for code in other.codes[len(other.codes) - tokens :]]
        later = later if tokens else []
        return Support(one.rule, one.vocabulary, tuple(number), (*one.codes, *gap, *later)).pack()

    def split(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Long sets are parts: a grammar's states come again in many turns."""
        found = unpack(data)
        parts = [stored for stored in found.sets if len(stored) >= _SHARED]
        if not parts or found.pack() != data:
            return data, []
        return found._pack(_SPLIT, _SHARED), parts

    def unite(self, rest: bytes, parts: Sequence[bytes]) -> bytes:
        """The sets in their places."""
        found, left = _unpack(rest, _SPLIT), iter(parts)
        try:
            sets = tuple(stored or next(left) for stored in found.sets)
        except StopIteration:
            raise InvalidInput(f"{len(parts)} parts of supports, and there are more") from None
        return replace(found, sets=sets).pack()


KIND = SupportKind()


def _stored(kept: NDArray[np.int64], vocabulary: int) -> bytes:
    """A set in its shortest form."""
    import numpy as np

    if 2 * len(kept) <= vocabulary:
        listed = bytes((_KEPT,)) + _differences(kept)
    else:
        mask = np.ones(vocabulary, dtype=bool)
        mask[kept] = False
        listed = bytes((_EXCLUDED,)) + _differences(np.flatnonzero(mask))
    if len(listed) <= 1 + (vocabulary + 7) // 8:
        return listed
    bits = np.zeros(vocabulary, dtype=np.uint8)
    bits[kept] = 1
    return bytes((_BITS,)) + np.packbits(bits, bitorder="little").tobytes()


def _differences(ids: NDArray[np.int64]) -> bytes:
    """Ascending ids as numbers of 7 bits to a byte: the first plus one, then how much each is above the one before."""
    import numpy as np

    numbers: NDArray[np.int64] = np.diff(ids, prepend=-1)
    width: NDArray[np.int64] = np.ones(len(numbers), dtype=np.int64)
    for extra in range(1, 5):
        width += numbers >= 1 << 7 * extra
    start = np.cumsum(width) - width
    out = np.zeros(int(width.sum()), dtype=np.uint8)
    for place in range(int(width.max(initial=0))):
        has = width > place
        more = (width[has] > place + 1).astype(np.int64) << 7
        out[start[has] + place] = (numbers[has] >> 7 * place & 127) | more
    return out.tobytes()


def _numbers(data: bytes) -> NDArray[np.int64]:
    import numpy as np

    found = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    ends = np.flatnonzero(found < 128)
    if not len(found) or not len(ends) or ends[-1] != len(found) - 1:
        raise InvalidInput("a support's set ends within a number")
    starts = np.concatenate(([0], ends[:-1] + 1))
    place = np.arange(len(found)) - np.repeat(starts, ends - starts + 1)
    if place.max() > 4:
        raise InvalidInput("a support's set holds a number beyond 32 bits")
    summed: Any = np.add.reduceat((found & 127) << 7 * place, starts)
    return np.asarray(summed, dtype=np.int64)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number, at, shift = number | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 35:
            raise ValueError("a number is beyond 32 bits")


def _runs(codes: Sequence[int]) -> Iterable[tuple[int, int]]:
    at = 0
    while at < len(codes):
        end = at + 1
        while end < len(codes) and codes[end] == codes[at]:
            end += 1
        yield codes[at], end - at
        at = end
