"""The simulated customer: speaks for a task's scenario by rules, without a model.

A scenario is prose in the second person ("You want to return the lamp. If the agent asks for a reason, say …"). The
customer tells it in the first person: what it wants at the beginning, and the rest where the agent asks for it. So the
same messages always get the same answers. It knows nothing but the scenario, agrees to what it is asked to confirm, and
is satisfied where the agent says that something was done, or that it can't be. Scenarios whose customers argue,
or change their mind in several ways, want a policy as the customer (`env.customer=policy`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 4
"""Answers without progress after which the customer leaves."""
SHARED_WORDS = 2
"""Words that a question and a sentence of the scenario must share for the sentence to be its answer."""
MAX_READ = 20_000
"""Characters of a message that the customer reads."""

YES = "Yes, please go ahead."
UNKNOWN = "I don't know. Please just do what I asked for."
WAITING = "Are you still there?"
CONTINUE = "Okay."
GREETING = "Hi, I need some help."

IDENTITY = re.compile(r"\b(e-?mail|zip|identity|verify|authenticate|user id|full name|your name|first and last name)\b")
CONFIRM = re.compile(
    r"\b(confirm\w*|proceed|go ahead|shall i|should i|do you agree|yes/no|is (this|that) (ok|okay|correct|right))\b"
)
MORE = re.compile(
    r"\b(anything else|something else|other (questions?|requests?)|further (help|assistance|questions?))\b"
)
REFUSAL = re.compile(r"\b(unable|unfortunately|not (able|possible|allowed)|can ?not|can't|won't)\b")
SETTLED = re.compile(
    r"\b(done|completed?|processed|transferred|cancell?ed|returned|exchanged|modified|updated|changed|requested)\b"
    rf"|{REFUSAL.pattern}"
)
TOPICS = (
    (
        "reason",
        re.compile(r"\b(reason|why)\b"),
        re.compile(r"\b(mistake|needed|because|since|reason)\b"),
        "It is no longer needed.",
    ),
    (
        "order",
        re.compile(r"\border (number|id)|which orders?\b"),
        re.compile(r"#w\d|order id|order number"),
        "I don't remember the order number.",
    ),
    (
        "payment",
        re.compile(r"\b(payment|refund\w*|gift ?card|paypal|credit card|pay)\b"),
        re.compile(r"\b(payment|refund\w*|gift ?card|paypal|credit card|visa|mastercard|amex|pay)\b"),
        "The original payment method, please.",
    ),
)
"""The topics that agents ask for: the topic, how a question and a sentence of the scenario name it, the answer without
one."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_CONDITION = re.compile(
    r"\b(if|when|once|unless|after)\b|\b(the agent|don't mention|do not mention|not reveal|asked)\b", re.IGNORECASE
)
_CLAUSE = re.compile(
    r"^\s*(but\s+)?(if|when|once|after)\b[^,]*,\s*(then\s+)?(you\s+(say|tell|mention)( that)?\s+)?", re.IGNORECASE
)
_PERSONS = (
    (r"\byou are\b", "I am"),
    (r"\byou're\b", "I'm"),
    (r"\byou were\b", "I was"),
    (r"\b(for|with|to|from|of|give|tell|gives|tells|by) you\b(?! (want|have|need|can|do|are))", r"\1 me"),
    (r"\byou\b", "I"),
    (r"\byours\b", "mine"),
    (r"\byourself\b", "myself"),
    (r"\byour\b", "my"),
    (r"\b(the agent's)\b", "your"),
    (r"\b(the agent)\b", "you"),
)


@dataclass
class Customer:
    """One customer in one conversation.

    Attributes:
        scenario: `reason`, `known`, `unknown`, `instructions`: prose in the second person.
        told: which of its sentences were said, by index.
        identified: whether it said who it is.
        waited: answers since the last progress.
        left: whether it gave up.
    """

    scenario: Mapping[str, str]
    told: list[int] = field(default_factory=list)
    identified: bool = False
    waited: int = 0
    left: bool = False

    def opening(self) -> str:
        """The wish, without the parts that are told only when asked for."""
        wanted = [place for place, text in enumerate(self._sentences) if not _CONDITION.search(text)]
        number = len(_split(self.scenario["reason"]))
        return self._tell([place for place in wanted if place < number][:number]) or GREETING

    def answer(self, said: str) -> str | None:
        """Answer an agent's message; None: the customer has nothing more to say, and ends the conversation."""
        said = said[:MAX_READ].casefold()
        if not said.strip():
            return self._wait(WAITING)
        asks = "?" in said or re.search(r"\b(please|could you|can you|may i|let me know)\b", said) is not None
        if asks and not self.identified and IDENTITY.search(said):
            self.identified = True
            return self._progress(first_person(f"{self.scenario['known']} {self.scenario['unknown']}"))
        if asks and CONFIRM.search(said):
            return self._progress(self._reconsider() or YES)
        if asks and IDENTITY.search(said):
            return self._wait(first_person(f"{self.scenario['known']} {self.scenario['unknown']}"))
        if MORE.search(said):
            return None
        if asks:
            return self._reply(said)
        return None if SETTLED.search(said) else self._wait(CONTINUE)

    def _reply(self, said: str) -> str | None:
        for _, question, sentence, otherwise in TOPICS:
            if question.search(said):
                about = [place for place, text in enumerate(self._sentences) if sentence.search(text.casefold())]
                return self._wait(self._tell(about) or otherwise)
        shared = {place: len(_words(text) & _words(said)) for place, text in enumerate(self._sentences)}
        best = max(shared, key=lambda place: shared[place], default=None)
        if best is None or shared[best] < SHARED_WORDS:
            return self._wait(UNKNOWN)
        return self._wait(self._tell([best]))

    def _reconsider(self) -> str:
        """Return what the scenario says instead of a first yes."""
        for place, text in enumerate(self._sentences):
            if place not in self.told and _CONDITION.search(text) and re.search(r"\bconfirm", text.casefold()):
                return self._tell([place])
        return ""

    def _tell(self, places: list[int]) -> str:
        self.told = sorted({*self.told, *places})
        return " ".join(first_person(_CLAUSE.sub("", self._sentences[place])) for place in places)

    def _progress(self, text: str) -> str:
        self.waited = 0
        return text

    def _wait(self, text: str) -> str | None:
        self.waited += 1
        self.left = self.waited > PATIENCE
        return None if self.left else text

    @property
    def _sentences(self) -> list[str]:
        return _split(self.scenario["reason"]) + _split(self.scenario["instructions"])

    def state(self) -> dict[str, Any]:
        return {"told": self.told, "identified": self.identified, "waited": self.waited, "left": self.left}


def first_person(text: str) -> str:
    """Prose about "you", as "I" say it."""
    text = text.strip()
    for pattern, words in _PERSONS:
        text = re.sub(pattern, words, text, flags=re.IGNORECASE)
    return text[:1].upper() + text[1:]


def _split(text: str) -> list[str]:
    return [part for part in (each.strip() for each in _SENTENCE.split(text)) if part.strip(". ")]


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z0-9]+", text.casefold()) if len(word) > 3}
