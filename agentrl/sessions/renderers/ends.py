"""Tokens that end a turn beside those that a format writes.

A model may end its turn with any of the tokens that its authors list in `generation_config.json`, of which a chat
template writes one: where the others don't stop an engine, a turn goes on until its tokens are used up. What the model
wrote is kept; a turn that ends with such a token gets no other.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from agentrl.errors import ConfigError, RenderError, suggest
from agentrl.models.folders import model_settings
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers.base import Renderer
from agentrl.types import FunctionCall, Message, ToolCall

_log = logging.getLogger(__name__)


@runtime_checkable
class EndsAlso(Protocol):
    """A renderer whose turns can be ended by further tokens."""

    def end_also(self, token_ids: Sequence[int]) -> None:
        """Take these as ends of a turn as well; none of them is in a turn that the renderer writes."""


def extend_ends(renderer: Renderer, tokenizer: HFTokenizer, stop: str = "") -> None:
    """Have a renderer's turns end with the tokens that the model's files list, and with `model.stop`.

    What is no special token and what the format writes within a turn is left out of those that the files list.

    Raises:
        ConfigError: `stop` is no special token, or within the format's turns, or the renderer takes no other ends.
    """
    known, within = set(renderer.stop_token_ids), set(_within_turns(renderer))
    more = [index for index in tokenizer.end_tokens if index in tokenizer.added.values() and index not in within]
    if stop:
        named = stop_token(tokenizer, stop)
        if named in within:
            raise ConfigError(f"model.stop={stop!r}: the renderer {renderer.name!r} writes it within a turn")
        if named not in known and not isinstance(renderer, EndsAlso):
            raise ConfigError(f"model.stop={stop!r}: the renderer {renderer.name!r} has its own ends of a turn")
        more.append(named)
    if isinstance(renderer, EndsAlso):
        renderer.end_also([index for index in dict.fromkeys(more) if index not in known])


def stop_token(tokenizer: HFTokenizer, stop: str) -> int:
    """The id of the token that `model.stop` names; ConfigError where it is no special token of this tokenizer."""
    if stop not in tokenizer.added:
        raise ConfigError(f"model.stop={stop!r} is no special token of this tokenizer{suggest(stop, tokenizer.added)}")
    return tokenizer.added[stop]


def check_vocabulary(renderer: Renderer, tokenizer: HFTokenizer) -> None:
    """Compare a format's tokens with the vocabulary of the model in the tokenizer's folder, where it has one.

    A tokenizer may have tokens that nobody uses beyond the model's (Llama 2's with a token for padding); a warning says
    how many. Those that turns are made of must have an embedding: else a turn would never end.

    Raises:
        ConfigError: one has none.
    """
    if tokenizer.path is None or not (tokenizer.path / "config.json").is_file():
        return
    rows = getattr(model_settings(tokenizer.path), "vocab_size", None)
    if not isinstance(rows, int) or rows >= tokenizer.vocab_size:
        return
    written = {*renderer.stop_token_ids, *_within_turns(renderer)}
    if beyond := sorted(index for index in written if index >= rows):
        token = tokenizer.decode(beyond[:1])
        raise ConfigError(
            f"the renderer {renderer.name!r} writes the token {token!r} ({beyond[0]}), and the model in "
            f"{str(tokenizer.path)!r} has {rows} tokens (vocab_size in config.json): its tokenizer is another model's"
        )
    _log.warning(
        "the tokenizer in %r has %d tokens, and the model %d (vocab_size in config.json): a text with one of the "
        "others can't be sent to it",
        *(str(tokenizer.path), tokenizer.vocab_size, rows),
    )


def _within_turns(renderer: Renderer) -> Iterator[int]:
    """The tokens that a renderer writes before the last one of a turn."""
    call = ToolCall(id="call00000", function=FunctionCall(name="f", arguments=json.dumps({"a": "b"})))
    for reasoning in (None, "r"):
        for content, calls in (("a", None), ("", [call]), ("a", [call]), ("", [call, call])):
            message = Message(role="assistant", content=content, reasoning_content=reasoning, tool_calls=calls)
            try:
                yield from renderer.turn(message)[:-1]
            except RenderError:  # the format has no place for it
                continue
