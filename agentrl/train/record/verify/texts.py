"""A check that the texts of turns, and of users' messages, are what their tokens say.

No parser runs again: it may have been mended since. A text has to be in what its node's tokens decode to, word by word
and in order, whatever a format writes around it and between its parts. So an added, changed or exchanged word is found,
and one that was left out is not. Calls are compared by their tools' names, and tools' results not at all: formats write
JSON in ways of their own. A gateway puts calls that can't be read, or are not allowed, as text behind the rest of a
turn, so its turns may go back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from types import MappingProxyType

from agentrl.config import MODEL, PAST, POPULATION, START, PolicyConfig
from agentrl.errors import AgentRLError
from agentrl.models.tokenizers import HFTokenizer, load_tokenizer
from agentrl.train.record.verify.report import Check
from agentrl.types import MAIN, Message, Node, Session

NO_TOKENIZER = "texts, since model/ has no tokenizer that can be loaded"
OTHERWISE = "messages of users that the tokenizer writes otherwise"
ANOTHERS = "messages to agents of policies with a model of their own"
MARKUP = ("<", "[")
"""The beginnings of a format's own text, which is taken out of a message's."""
LONGEST = 500
"""The most characters of a word before markup within it."""
SPLITS = 8
"""The most pieces of markup within a word: without a bound, one text would take as long as somebody likes."""
_BETWEEN = re.compile(r"[\s\ufffd]+")


class Texts:
    """Compares the texts of a run's sessions with their tokens.

    Args:
        model: the folder of the run's model.
        check: gets what is wrong, and what is unknown.
        apart: the policies with a model of their own, whose tokenizer may be another, and those without a model.
        players: the policies that the run gave agents to; a demonstration is written for them, and says no policy.
    """

    def __init__(
        self,
        model: Path,
        check: Check,
        apart: Set[str] = frozenset(),
        players: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._check, self._apart, self._players = check, apart, players
        self._tokenizer: HFTokenizer | None = None
        try:
            self._tokenizer = load_tokenizer(model)
        except (AgentRLError, OSError, ValueError, ImportError):
            check.unknown[NO_TOKENIZER] += 1

    def add(self, session: Session) -> None:
        """Add a session to what is checked."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return
        spoke = {node.agent: node.policy for node in session.nodes if node.sampled and node.policy}
        for node in session.nodes:
            policy = spoke.get(node.agent) or self._players.get(node.agent.partition("/")[0], MAIN)
            if policy.partition("/")[0] in self._apart:
                self._check.unknown.update({ANOTHERS: 1} if node.message.role == "user" and node.token_ids else {})
                continue
            own, asked = node.sampled and node.policy == MAIN, node.message.role == "user" and node.copy_of is None
            if own or (asked and self._is_written(tokenizer, node.message)):
                self._check.examined["texts"] += 1
                for what in _differences(node, _words(tokenizer.decode(node.token_ids))):
                    self._check.fault(f"session {session.id}, message {node.id}", what)

    def _is_written(self, tokenizer: HFTokenizer, message: Message) -> bool:
        """True where the tokenizer gives a message's text back."""
        same = _words(tokenizer.decode(tokenizer.encode(message.text))) == _words(message.text)
        self._check.unknown.update({} if same else {OTHERWISE: 1})
        return same


def models_apart(policies: Mapping[str, PolicyConfig]) -> frozenset[str]:
    """The policies that are not of the model that the run began with; those that are no model have no tokens."""
    model_of = {name: own.past.of if own.name == PAST else name for name, own in policies.items()}
    others = {name for name, of in model_of.items() if of in policies and policies[of].model.name != START}
    return frozenset(others | {name for name, own in policies.items() if own.name not in (MODEL, PAST, POPULATION)})


def _words(text: str) -> str:
    return _BETWEEN.sub("", text)


def _differences(node: Node, written: str) -> Iterator[str]:
    """Yield the parts of a message that its tokens don't say."""
    message = node.message
    names = " ".join(call.function.name for call in message.tool_calls or () if not call.error)
    for kind, text in (("text", message.text), ("reasoning", message.reasoning_content or ""), ("calls", names)):
        at = 0
        for word in filter(None, _BETWEEN.split(text)):
            if (at := _end(word, written, (at,) if node.reply_id is None else (at, 0))) < 0:
                yield f"its {kind} has {word[:40]!r}, and its tokens don't"
                break


def _end(word: str, written: str, starts: tuple[int, ...]) -> int:
    """The end of a word in what tokens say, from one of some places on; -1 where it is not. Markup may be within it."""
    for _ in range(SPLITS + 1):
        for start in starts:
            if (place := written.find(word, start)) >= 0:
                return place + len(word)
        split = next((found for start in starts if (found := _before_markup(word, written, start))), None)
        if split is None:
            return -1
        word, starts = word[split[0] :], (split[1], *starts[1:])
    return -1


def _before_markup(word: str, written: str, start: int) -> tuple[int, int] | None:
    """The length of a word's beginning before markup, and where that ends."""
    for length in range(min(len(word) - 1, LONGEST), 0, -1):
        places = [place for markup in MARKUP if (place := written.find(word[:length] + markup, start)) >= 0]
        if places:
            return length, min(places) + length
    return None
