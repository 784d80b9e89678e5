"""Rewards that compare an answer with the task's right ones: `exact_match`, `f1`, `math`, `choice`."""

from __future__ import annotations

from typing import Any, Literal

from agentrl.common.plain import plain
from agentrl.envs.builtin.questions import latex
from agentrl.envs.builtin.questions.stated import chosen_letter
from agentrl.envs.builtin.search_r1.scoring import exact_match, f1
from agentrl.envs.rewards import Reward
from agentrl.envs.scoring.texts import Extract, ReferenceConfig, extract_answer, field_of, right_answers, single_spaced
from agentrl.errors import ConfigError
from agentrl.types import Session, Task

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class ExactConfig(ReferenceConfig):
    """The settings of `exact_match`."""

    normalize: Literal["words", "spaces", "nothing"] = "words"
    """The differences that do not count: case, punctuation, articles and spacing, as in SQuAD's evaluation (`words`);
    spacing (`spaces`); nothing but spaces around the answer (`nothing`)."""


class ExactMatch(Reward):
    """1 where the answer is a right one, and 0 otherwise."""

    settings = ExactConfig
    config: ExactConfig

    async def compute(self, session: Session) -> float:
        answers = right_answers(session.task, self.config.reference)
        text = extract_answer(session, self.config.extract)
        match self.config.normalize:
            case "words":
                return exact_match(text, answers)
            case "spaces":
                return float(text is not None and single_spaced(text) in set(map(single_spaced, answers)))
        return float(text is not None and text in {answer.strip() for answer in answers})


class F1(Reward):
    """The greatest F1 of the answer's words against those of a right one, after SQuAD's normalisation."""

    settings = ReferenceConfig
    config: ReferenceConfig

    async def compute(self, session: Session) -> float:
        answers = right_answers(session.task, self.config.reference)
        return f1(extract_answer(session, self.config.extract), answers)


class MathConfig(ReferenceConfig):
    """The settings of `math`."""

    extract: Extract = "stated"


class Math(Reward):
    """1 where the answer equals a right one as mathematics: numbers, fractions, tuples, intervals, sets."""

    settings = MathConfig
    config: MathConfig

    async def compute(self, session: Session) -> float:
        answers = right_answers(session.task, self.config.reference)
        text = extract_answer(session, self.config.extract)
        return float(text is not None and any(latex.equal(text, answer) for answer in answers))


class ChoiceConfig(ReferenceConfig):
    """The settings of `choice`."""

    choices: str = "choices"
    """The field of the task with the list of choices; read where the right answer is a place or a choice's text."""


class ChoiceAnswer(Reward):
    r"""1 where the answer states the letter of the right choice: in \boxed{}, behind "Answer:", or as its beginning."""

    settings = ChoiceConfig
    config: ChoiceConfig

    async def compute(self, session: Session) -> float:
        right = self._letters(session.task)
        text = extract_answer(session, self.config.extract)
        return float(text is not None and chosen_letter(text) in right)

    def _letters(self, task: Task) -> set[str]:
        """The letters of the right choices: the reference has places from 0, the choices' own texts, or letters."""
        value = field_of(task, self.config.reference, "reference")
        return {self._letter(task, each) for each in (value if isinstance(value, list) else [value])}

    def _letter(self, task: Task, given: Any) -> str:
        choices = plain(task.data.get(self.config.choices))
        texts = [str(each) for each in choices] if isinstance(choices, list) else []
        place = given if isinstance(given, int) else texts.index(str(given)) if str(given) in texts else -1
        if 0 <= place < min(len(texts), len(LETTERS)):
            return LETTERS[place]
        if isinstance(given, str) and len(given.strip()) == 1 and given.strip().upper() in LETTERS:
            return given.strip().upper()
        raise ConfigError(
            f"reference={self.config.reference!r}: task {task.id!r} has {given!r:.80} there; allowed are a letter, a "
            f"place from 0, or the text of one of its {self.config.choices!r}"
        )
