"""Keeps text from becoming special tokens inside renderers that we did not write.

Chat templates and most renderers join markup and content into one string and encode that, so content that
reads `<|im_end|>` ends a turn. Before content is handed to them, every added token in it is broken up by a
character from a private-use plane; the tokenizer they are given takes the character out again and encodes what
it was in as plain text. It survives JSON and whatever a template does to strings. The character itself,
where content really holds it, is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from agentrl.models.tokenizers import HFTokenizer

GUARD = "\U0010fffd"
_GUARDS = re.compile(f"{GUARD}({GUARD}?)")

_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""White space for the `tokenizers` library; `str.strip` without characters takes four control codes more."""

MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Text that renderers and templates look for in content, added token or not."""


class MarkupGuard:
    """Breaks up markup in content, and encodes strings that hold such content."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer
        tokens = sorted({*tokenizer.added, *MARKUP}, key=len, reverse=True)
        self._markup = re.compile("|".join([GUARD, *map(re.escape, tokens)]))
        added = sorted(tokenizer.added, key=len, reverse=True)
        self._added = re.compile("(" + "|".join(map(re.escape, added)) + ")") if added else None

    def text(self, text: str) -> str:
        """Content in which nothing reads as markup any more."""
        return self._markup.sub(lambda found: GUARD + GUARD.join(found.group()), text)

    def value(self, value: Any) -> Any:
        """Guard every string in a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list | tuple) else value

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered string: its markup becomes special tokens, guarded content does not."""
        if GUARD not in text or self._added is None:
            return self._tokenizer.encode_markup(text)
        ids: list[int] = []
        pieces = self._added.split(text)
        for place, piece in enumerate(pieces):
            if place % 2:
                ids.append(self._tokenizer.added[piece])
                continue
            if place and pieces[place - 1] in self._tokenizer.strips_right:
                piece = piece.lstrip(_SPACE)
            if place + 1 < len(pieces) and pieces[place + 1] in self._tokenizer.strips_left:
                piece = piece.rstrip(_SPACE)
            if piece:
                ids += self._tokenizer.encode(_GUARDS.sub(r"\1", piece))
        return ids


class GuardedTokenizer:
    """The tokenizer that the `renderers` package is given."""

    unk_token_id = None

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer
        self.guard = MarkupGuard(tokenizer)
        self.name_or_path = str(tokenizer.path or "")

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        """Token ids of a string in which content was guarded."""
        return self.guard.encode(text)

    def decode(self, token_ids: Sequence[int], *args: Any, **kwargs: Any) -> str:
        """Text of token ids, special tokens written out."""
        return self._tokenizer.decode(token_ids)

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | list[int | None] | None:
        """Ids of added tokens; None for what is none."""
        if isinstance(tokens, str):
            return self._tokenizer.added.get(tokens)
        return [self._tokenizer.added.get(token) for token in tokens]
