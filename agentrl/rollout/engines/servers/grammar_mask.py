"""The tokens that a server's grammar leaves of the vocabulary, by a matcher of ours that the sampled tokens drive.

A free string leaves nearly all of the vocabulary: vLLM lists no more than some hundred tokens, and SGLang spends a
third of its time on the list. Their grammars are llguidance's, as ours are, so a matcher that reads the vocabulary as
the server does says the same. A token that it forbids shows that the two differ: from there on nothing is known.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.errors import AgentRLError
from agentrl.rollout.engines import grammars
from agentrl.rollout.engines.grammars import Grammars, Matcher
from agentrl.types import Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class GrammarMask:
    """The tokens that a turn's grammar leaves, one token after the other."""

    def __init__(self, matcher: Matcher) -> None:
        self.library, self._matcher = matcher.library, matcher
        self._known = True

    def accept(self, token: int) -> NDArray[np.int64] | None:
        """Go on by a token that was drawn, and return what it was drawn from; None: that is not known."""
        if not self._known:
            return None
        try:
            allowed = self._matcher.allowed()
        except AgentRLError:
            self._known = False
            return None
        self._known = bool(allowed[token]) and self._matcher.accept(token)
        return allowed.nonzero()[0] if self._known else None


class ServerGrammars:
    """Makes the masks of a server's requests.

    Args:
        folder: the model's, whose tokenizer the server reads.
        vocabulary: how many logits it has.
    """

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self._folder, self._vocabulary = folder, vocabulary

    def mask(self, sampling: Sampling) -> GrammarMask | None:
        """Return a turn's mask; None where the library is missing, or can't keep to the grammar."""
        if not grammars.available():
            return None
        try:
            return GrammarMask(self._made.matcher(replace(sampling, stop_token_ids=self._ends), ()))
        except AgentRLError:
            return None

    @cached_property
    def _made(self) -> Grammars:
        from agentrl.models.tokenizers import load_tokenizer

        return Grammars(load_tokenizer(self._folder), self._vocabulary, text=True)

    @property
    def _ends(self) -> tuple[int, ...]:
        """The tokenizer's own end token: the only one by which a grammar ends there."""
        tokenizer = self._made.tokenizer
        named = tokenizer.config.get("eos_token")
        end = tokenizer.added.get(str(named.get("content") if isinstance(named, dict) else named))
        return tokenizer.end_tokens if end is None else (end,)
