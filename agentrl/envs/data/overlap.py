"""Contamination: training texts that share a run of words with those of an evaluation, which is then known before.

The usual measure, a run of 13 words as in the GPT-3 paper (Brown et al., arXiv:2005.14165, appendix C). A text that is
shorter than a run counts as a whole: it overlaps where the other set has the same text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator

RUN = 13
_WORD = re.compile(r"\w+")


class Overlap:
    """The runs of words of some texts.

    Args:
        texts: what nothing may share a run with, an evaluation's questions.
        run: words of a run.
    """

    def __init__(self, texts: Iterable[str], run: int = RUN) -> None:
        self.run = run
        self._known = {key for text in texts for key in _keys(text, run)}

    def shared(self, text: str) -> bool:
        """Return whether a text has a run of them."""
        return any(key in self._known for key in _keys(text, self.run))


def _keys(text: str, run: int) -> Iterator[bytes]:
    """A digest of each run of a text; millions of them fit into memory."""
    words = _WORD.findall(text.lower())
    if not words:
        return
    for start in range(max(len(words) - run, 0) + 1):
        yield hashlib.blake2b(" ".join(words[start : start + run]).encode(), digest_size=8).digest()
