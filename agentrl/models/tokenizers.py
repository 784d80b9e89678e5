"""Hugging Face fast tokenizers behind `agentrl.types.Tokenizer`.

The published tokenizer splits text at every added token: so a chat template's markup becomes special tokens, and
a user who types `<|im_end|>` would end a turn. Whenever encoded text contains such a token, it is encoded again by a
second tokenizer, built from the same file without its added tokens: whatever the text is, it can't produce one of
them. Given up: added tokens that are ordinary text (Gemma's HTML tags) are split into pieces as well;
runs of white space stay, since they are no markup. The `tokenizers` library alone is used: importing
transformers takes two seconds and adds nothing that is needed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from agentrl.common.untrusted import safe_text
from agentrl.errors import InvalidInput, require_extra, suggest
from agentrl.models import tokenizer_files
from agentrl.models.image_processor import ImageProcessor, find_processor
from agentrl.models.tokenizer_files import named_templates

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


_LONG = 4096  # characters
_SHORT, _MOST_KNOWN = 1024, 4096
"""The most characters of a text whose tokens are cached (mostly a format's own markup), and the most such texts."""

_BLANKS = re.compile("[ \u0120\u2581]+")
"""Blanks in vocabularies: plain, in byte-level ones, in SentencePiece."""


class HFTokenizer:
    """A fast tokenizer whose text can't become special tokens.

    Attributes:
        source: the text of its `tokenizer.json`, without limits to the length of texts, and without chance.
        published: the tokenizer as its authors made it, for which markup in a text is markup.
        vocab_size: one more than the largest id.
        added: the published added tokens (special ones and other markup) and their ids.
        unmarked: the ids of those added tokens that are not called special.
        strips_left: the added tokens that absorb the white space before them.
        strips_right: those that absorb the white space after them.
        chat_template: the tokenizer's own Jinja template, the one named "default" of several; None without one.
        tool_template: the one for conversations with tools on offer: that named "tool_use", else `chat_template`.
        templates: all of them by their names.
        config: the contents of `tokenizer_config.json`.
        path: the folder it came from; None for one built in memory.
        end_tokens: the tokens at which the model's authors end generation (`generation_config.json`), where known.
    """

    def __init__(
        self,
        source: str,
        config: dict[str, Any] | None = None,
        path: Path | None = None,
        end_tokens: Sequence[int] = (),
    ) -> None:
        """Build from the text of a `tokenizer.json` and the mapping in its `tokenizer_config.json`."""
        spec = orjson.loads(source)
        random = spec["model"].get("dropout")
        if spec.get("truncation") or spec.get("padding") or random:  # saved by who used it last; a prompt is whole
            spec |= {"truncation": None, "padding": None}
            spec["model"] |= {"dropout": None} if random else {}
            source = orjson.dumps(spec).decode()
        self.source = source
        self.published = _backend(source)
        self._text: Backend | None = None
        known = self.published.get_added_tokens_decoder()
        added = {token.content: index for index, token in known.items()}
        self.config = config or {}
        self.path = path
        self.end_tokens = tuple(end_tokens)
        self.templates = named_templates(self.config.get("chat_template"), "the tokenizer")
        self.chat_template = self.templates.get("default")
        self.tool_template = self.templates.get("tool_use", self.chat_template)
        self.added: dict[str, int] = {token: index for token, index in added.items() if not _is_space(token)}
        self.unmarked = frozenset(index for index, token in known.items() if not token.special)
        self.strips_left = frozenset(token.content for token in known.values() if token.lstrip)
        self.strips_right = frozenset(token.content for token in known.values() if token.rstrip)
        self._markup = frozenset(self.added.values())
        self.vocab_size = max([*tokenizer_files.pieces(spec["model"]).values(), *added.values()], default=-1) + 1
        self._byte_of = byte_alphabet() if b'"ByteLevel"' in orjson.dumps(spec.get("decoder")) else None
        self._bytes: dict[int, bytes] = {}
        self._known: dict[str, tuple[int, ...]] = {}
        self._known_markup: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        return _remember(self._known, text, self._encode)

    def _encode(self, text: str) -> list[int]:
        ids = self.encode_markup(text)
        if self._markup.isdisjoint(ids):
            return ids
        if self._text is None:
            spec = _without_markup(orjson.loads(self.source), set(self.added))
            self._text = _backend(orjson.dumps(spec).decode())
        return _ids(self._text, text)

    def encode_markup(self, text: str) -> list[int]:
        """Token ids as the published tokenizer has them: markup in the text becomes special tokens.

        For trusted text only: the output of a chat template, never a user's text.
        """
        return _remember(self._known_markup, text, partial(_ids, self.published))

    @cached_property
    def images(self) -> ImageProcessor | None:
        """The image processor of the folder's model; None where it sees no images, or none of a known family."""
        return find_processor(self.path)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The id of every piece, added tokens included."""
        return dict(self.published.get_vocab(with_added_tokens=True))

    @cached_property
    def longest(self) -> int:
        """Characters of the vocabulary's longest piece: n characters are at least n / longest tokens."""
        return max(map(len, self.vocabulary))

    @cached_property
    def most_gaps(self) -> int:
        """Runs of blanks in a piece of the vocabulary, at most: n in a text are at least n / most_gaps tokens."""
        return max(1, *(len(_BLANKS.findall(piece)) for piece in self.vocabulary))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens written out; bytes that are not UTF-8 become U+FFFD."""
        text: str = self.published.decode(list(ids), skip_special_tokens=False)
        return text

    def special(self, token: str) -> int:
        if token not in self.added:
            raise InvalidInput(f"token={token!r} is no special token of this tokenizer{suggest(token, self.added)}")
        return self.added[token]

    def token_bytes(self, index: int) -> bytes:
        """The bytes that a token stands for, which may be a part of a character; b"" for unknown ids."""
        known = self._bytes.get(index)
        if known is None:
            known = self._bytes[index] = self._read_bytes(index)
        return known

    def _read_bytes(self, index: int) -> bytes:
        if not 0 <= index < self.vocab_size:
            return b""
        piece = self.published.id_to_token(index)
        if piece is None:
            return b""
        if piece in self.added or self._byte_of is None or any(char not in self._byte_of for char in piece):
            return _sentencepiece_bytes(piece) if self._byte_of is None else piece.encode()
        return bytes(self._byte_of[char] for char in piece)


def _remember(known: dict[str, tuple[int, ...]], text: str, encode: Callable[[str], list[int]]) -> list[int]:
    """Token ids of a text; short ones, which formats repeat in every message, are encoded once."""
    if len(text) > _SHORT:
        return encode(text)
    ids = known.get(text)
    if ids is None:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        ids = known[text] = tuple(encode(text))
    return list(ids)


def _ids(backend: Backend, text: str) -> list[int]:
    """Token ids; long texts are encoded as batches, which release the interpreter lock.

    Half of a surrogate pair, which an escape in a call's JSON may stand for, is replaced as in a message's text.
    """
    try:
        if len(text) < _LONG:
            ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        else:
            ids = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except TypeError:
        if (safe := safe_text(text)) == text:
            raise
        return _ids(backend, safe)
    return ids


def load_tokenizer(source: Any) -> HFTokenizer:
    """A tokenizer from a Hugging Face folder, a `tokenizer.json`, or a fast tokenizer of transformers.

    Args:
        source: a path, an `HFTokenizer` (returned as it is), or a `PreTrainedTokenizerFast`.

    Raises:
        InvalidInput: there is no `tokenizer.json`, or it can't be read.
        MissingExtra: the `tokenizers` library is not installed.
    """
    if isinstance(source, HFTokenizer):
        return source
    if backend := getattr(source, "backend_tokenizer", None):
        named = {key: str(value) for key, value in source.special_tokens_map.items() if key.endswith("_token")}
        return HFTokenizer(backend.to_str(), {"chat_template": source.chat_template, **named})
    return _load(Path(source).expanduser().resolve())


@lru_cache(maxsize=16)
def _load(path: Path) -> HFTokenizer:
    files = tokenizer_files.read(path)
    try:
        folder = path if path.is_dir() else path.parent
        return HFTokenizer(files.source, files.config, folder, files.end_tokens)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"tokenizer={str(path)!r} can't be read: {error}") from error


def _backend(source: str) -> Backend:
    with require_extra("train", "tokenizers"):
        from tokenizers import Tokenizer as Backend
    try:
        return Backend.from_str(source)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(str(error)) from error


def _without_markup(spec: dict[str, Any], markup: set[str]) -> dict[str, Any]:
    """The same tokenizer, without the added tokens that are markup: neither added, nor in the model's vocabulary.

    Merges that make a removed token, or need one, go with it: the `tokenizers` library refuses a merge whose parts
    or result are not in the vocabulary. The unknown token stays, since the library needs it, but nothing makes it.
    """
    kept = [entry for entry in spec.get("added_tokens", []) if entry["content"] not in markup]
    model = dict(spec["model"])
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        unknown = model.get("unk_token")
        model["vocab"] = {k: v for k, v in vocab.items() if k not in markup or k == unknown}
    elif isinstance(vocab, list):  # Unigram: a token's id is its place, so a removed one leaves a name none can guess
        unknown_id, hidden = model.get("unk_id"), secrets.token_hex(16)
        model["vocab"] = [
            [f"{hidden}{place}" if piece in markup and place != unknown_id else piece, score]
            for place, (piece, score) in enumerate(vocab)
        ]
    if model.get("merges"):
        prefix = len(model.get("continuing_subword_prefix") or "")
        pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [[a, b] for a, b in pairs if markup.isdisjoint((a, b, a + b[prefix:]))]
    return {**spec, "added_tokens": kept, "model": model, "post_processor": None}


def _is_space(token: str) -> bool:
    """True if a token is white space alone, plain or in SentencePiece's form."""
    return not token.replace("\u2581", " ").strip()


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable alphabet: the byte that each character represents."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _sentencepiece_bytes(piece: str) -> bytes:
    """SentencePiece writes a space as ▁ (U+2581) and a single byte as <0xNN>."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()
