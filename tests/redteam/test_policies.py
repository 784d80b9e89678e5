"""No policy is rewarded for knowing how it is scored: the worlds, terminals, games, instructions and calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import Any, cast

import pytest

from agentrl.envs import calls
from agentrl.envs.builtin.instructions.checks import list_followed
from agentrl.envs.episode import play
from agentrl.envs.registry import make
from agentrl.types import Message
from tests.envs.test_games import begun, say
from tests.envs.test_instructions import CASES
from tests.envs.test_retail import saying
from tests.envs.test_terminal import NAMED, docker, one, reward_of, said  # noqa: F401
from tests.redteam.attack import Attack, ids
from tests.redteam.policies import INSTRUCTIONS, OFFERS, RETAIL, TERMINAL, WEB

REFUSES = "Unfortunately that is not possible. "
LEVELS = (1, 2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", RETAIL, ids=ids(RETAIL))
async def test_no_customer_is_served_by(case: Attack) -> None:
    """All digits in a refusal answered every question about a number: a fifth of level 3 was solved."""
    for task in islice(calls.tasks(make("retail", level=3), "eval"), 25):
        scores = [
            (await play(make("retail", level=3), task, saying(text))).score or 0.0
            for text in (REFUSES, eval(case.payload, {"REFUSES": REFUSES}))
        ]
        assert scores[1] <= scores[0], f"{case.must_not}: {task['scenario']}"


class Visitor:
    """Makes calls one after another; -1 is the last element of the page."""

    def __init__(self, payload: str, task: Mapping[str, Any]) -> None:
        own = {"open_": self.open_, "click": self.click, "fill": self.fill, "strings": strings, "task": task}
        self.left: list[Any] = list(eval(payload, own))

    def open_(self, url: str) -> Any:
        return lambda env: env.call("open", url=url)

    def click(self, number: int) -> Any:
        return lambda env: env.call("click", number=number if number > 0 else len(env.browser.page.elements))

    def fill(self, text: str) -> list[Any]:
        return [lambda env, number=n: env.call("type", number=number, text=text[:5000]) for n in range(1, 12)]

    def __call__(self, env: Any, messages: Sequence[Message]) -> Message:
        step = self.left.pop(0) if self.left else "Done."
        return Message(role="assistant", content=step) if isinstance(step, str) else step(env)


def strings(value: Any) -> Iterator[str]:
    """Every text in a task."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    yield from [value] if isinstance(value, str) else [text for each in inner for text in strings(each)]


@pytest.mark.slow
@pytest.mark.parametrize("case", WEB, ids=ids(WEB))
@pytest.mark.parametrize("name", ["web_shop", "web_forms"])
async def test_no_site_is_worked_by(name: str, case: Attack) -> None:
    for level in LEVELS:
        for task in islice(calls.tasks(make(name, level=level), "eval"), 3):
            session = await play(make(name, level=level), task, Visitor(case.payload, task.data))
            assert session.score == 0, case.must_not


VALID = {"email": "a@b.cc", "phone": "+123456", "postcode": "12345", "start": "2026-01-01", "end": "2026-01-02"}
"""What a field of a form takes, by its name; others take any number."""


def guess(env: Any, number: int) -> Any:
    """Put something into a field that it takes, of choices the last; what takes nothing refuses it."""
    element = next(iter(env.browser.page.elements[number - 1 : number]), None)
    name, options = (element.name, element.options) if element else ("", [])
    return env.call("type", number=number, text=options[-1] if options else VALID.get(name, "1"))


@pytest.mark.slow
async def test_what_any_form_takes_and_a_basket_of_everything_are_worth_hardly_anything() -> None:
    """They are sent and ordered, which is what the others here don't come to."""
    guesses = [lambda env, number=n: guess(env, number) for n in range(2, 5)]
    for name, level in (("web_shop", 3), ("web_forms", 2)):
        scores = []
        for task in islice(calls.tasks(make(name, level=level), "eval"), 10):
            visitor, env = Visitor("[]", {}), cast(Any, make(name, level=level))
            if name == "web_shop":
                items = [[visitor.open_(f"/item/{n}"), *guesses, visitor.click(-1)] for n in range(5)]
                visitor.left = [step for item in items for step in item] + [visitor.open_("/basket"), visitor.click(-1)]
            else:
                visitor.left = [visitor.open_("/"), *(lambda env, number=n: guess(env, number) for n in range(1, 9))]
                visitor.left.append(visitor.click(-1))
            session = await play(env, task, visitor)
            assert env.site.ended
            scores.append(session.score or 0.0)
        assert fmean(scores) < 0.15, name


@pytest.mark.slow
@pytest.mark.parametrize("case", TERMINAL, ids=ids(TERMINAL))
async def test_no_task_for_a_shell_is_solved_or_broken_by(docker: None, case: Attack) -> None:  # noqa: F811
    for level, kind in ((1, NAMED["permissions"]), (3, NAMED["program"])):
        task, env = one(level, kind), make("terminal")
        await calls.reset(env, task)
        await said(env, case.payload)
        assert await reward_of(env, task) == 0, case.must_not
        await calls.close(env)


@pytest.mark.parametrize("case", INSTRUCTIONS, ids=ids(INSTRUCTIONS))
def test_no_instruction_is_followed_by(case: Attack) -> None:
    """What nobody sees has no commas, no forbidden words and less than so many of everything."""
    for kind, cases in CASES.items():
        for loose in (True, False):
            assert list_followed(eval(case.payload), [kind], [cases[0]], loose=loose) == [False], (
                f"{kind}: {case.must_not}"
            )


@pytest.mark.parametrize("case", OFFERS, ids=ids(OFFERS))
async def test_no_division_holds_that_the_partner_did_not_read(case: Attack) -> None:
    env = await begun(make("negotiation"))
    speaker = env.turn
    await say(env, case.payload)
    assert (env.offer, env.turn) == (None, speaker), case.must_not
