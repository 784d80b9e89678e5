"""Grammars: which tokens may come next in a turn that has to fit a JSON schema, a regular expression or Lark rules.

A matcher of the library llguidance (extra `grammars`) is driven by a turn's own tokens, so what may come next follows
from nothing else: an engine that continues a turn after an abort hands over the tokens of the earlier attempts. Where
the text may end, the turn's stop tokens are allowed as well, whichever they are. Other special tokens are allowed where
a Lark grammar names them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from agentrl.errors import InvalidInput, require_extra
from agentrl.models.tokenizers import HFTokenizer
from agentrl.types import Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXTRA = "grammars"
_COMPILED = 64
"""Grammars that are kept compiled: a run's turns mostly have the same one."""


def available() -> bool:
    """Return whether the library is installed."""
    return importlib.util.find_spec("llguidance") is not None


def _library() -> Any:
    with require_extra(EXTRA, "llguidance"):
        import llguidance
    return llguidance


class Matcher:
    """A turn's grammar and where in it the turn is.

    Attributes:
        library: the library's name and version, which stored supports name.
        end: the token that ended the text; None where none did.
    """

    def __init__(self, matcher: Any, library: str, vocabulary: int, ends: Sequence[int]) -> None:
        self.library = library
        self._matcher, self._vocabulary, self._ends = matcher, vocabulary, list(ends)
        self.end: int | None = None

    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens of the vocabulary may come next.

        Raises:
            InvalidInput: the grammar has become too complex for the library.
        """
        import numpy as np

        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        found = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)
        if self._matcher.is_error():
            why = f"the library can't go on with it: {_first_line(self._matcher)}"
            raise InvalidInput(f"the turn's grammar (a schema, a regular expression or strict calls): {why}")
        if self._ends and self._matcher.is_accepting():
            found[self._ends] = True
        return found

    def accept(self, token: int) -> bool:
        """Go on by a token, and return whether the grammar allows it."""
        if token in self._ends and self._matcher.is_accepting():
            self.end = token
            return True
        return bool(self._matcher.try_consume_tokens([token]))

    @property
    def ended(self) -> bool:
        """True if a token said that the text is complete, or nothing can follow it where there is no such token."""
        return self.end is not None or (not self._ends and bool(self._matcher.is_stopped()))


class Grammars:
    """Makes the matchers of an engine's requests.

    Args:
        tokenizer: the model's.
        vocabulary: how many logits the model has; those without a token are never allowed.
        text: whether added tokens that their file does not call special are text, as they are to servers.
    """

    def __init__(self, tokenizer: HFTokenizer, vocabulary: int, *, text: bool = False) -> None:
        self.tokenizer, self._vocabulary = tokenizer, vocabulary
        self._library = _library()
        self._known = self._library.LLTokenizer(
            self._library.TokenizerWrapper(_Vocabulary(tokenizer, vocabulary, text)), n_vocab=vocabulary + 1
        )
        self._compiled = lru_cache(_COMPILED)(self._compile)

    def matcher(self, sampling: Sampling, turn: Sequence[int]) -> Matcher:
        """Return the matcher of a turn after its first tokens, none as a rule.

        Raises:
            InvalidInput: the library can't keep to that grammar, or these tokens don't fit it.
        """
        kind, grammar = self._grammar(sampling)
        matcher = self._compiled(grammar).deep_copy()
        if matcher.is_error():
            raise InvalidInput(f"sampling.{kind} is no grammar that can be kept to: {_first_line(matcher)}")
        stops = sampling.stop_token_ids or self.tokenizer.end_tokens
        ends = [token for token in stops if 0 <= token < self._vocabulary]
        found = Matcher(matcher, f"llguidance-{self._library.__version__}", self._vocabulary, ends)
        if not all(map(found.accept, turn)):
            raise InvalidInput(f"sampling.{kind}: the turn's {len(turn)} tokens before an abort do not fit it")
        return found

    def _compile(self, grammar: str) -> Any:
        return self._library.LLMatcher(self._known, grammar, log_level=0)

    def _grammar(self, sampling: Sampling) -> tuple[str, str]:
        if sampling.lark is not None:
            return "lark", self._library.LLMatcher.grammar_from_lark(sampling.lark)
        if sampling.json_schema is None:
            return "regex", self._library.LLMatcher.grammar_from_regex(sampling.regex or "")
        try:
            return "json_schema", self._library.LLMatcher.grammar_from_json_schema(sampling.json_schema)
        except ValueError as error:
            raise InvalidInput(f"sampling.json_schema is no JSON schema: {error}") from None


class _Vocabulary:
    """The tokens of a model in the form that the library reads: the bytes of each, and one more that ends a text."""

    bos_token_id = None

    def __init__(self, tokenizer: HFTokenizer, vocabulary: int, text: bool) -> None:
        self._tokenizer, self.eos_token_id = tokenizer, vocabulary
        markup = set(tokenizer.added.values()) - (tokenizer.unmarked if text else frozenset())
        self.tokens = [b"" if token in markup else tokenizer.token_bytes(token) for token in range(vocabulary)] + [b""]
        self.special_token_ids = [vocabulary]

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(errors="replace") if isinstance(text, bytes) else text)


def _first_line(matcher: Any) -> str:
    return str(matcher.get_error()).strip().partition("\n")[0][:300]
