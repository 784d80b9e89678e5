"""A library's own loop is played turn by turn, and leaves nothing behind that asyncio would complain of."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from agentrl.envs.adapters.loops import Ask, EpisodeLoop
from agentrl.errors import EnvError
from agentrl.types import FunctionCall, Message, StepResult, ToolCall


async def echo(ask: Ask) -> str:
    said = await ask([Message(role="user", content="first")], [])
    told = [Message(role="user", content="first"), said, Message(role="user", content="second")]
    return (await ask(told, [])).text


async def forgetful(ask: Ask) -> str:
    said = await ask([Message(role="user", content="first")], [])
    return (await ask([Message(role="user", content="another"), said, Message(role="user", content="and?")], [])).text


async def offers_more(ask: Ask) -> str:
    return (await ask([Message(role="user", content="first")], ["search"])).text


async def asks_twice(ask: Ask) -> str:
    both = await asyncio.gather(*(ask([Message(role="user", content=text)], []) for text in ("left", "right")))
    return " ".join(message.text for message in both)


async def test_a_loop_is_played_turn_by_turn_to_what_it_returns() -> None:
    loop = EpisodeLoop(echo, [], "echo")
    assert [message.text for message in await loop.begin() or ()] == ["first"]
    following = await loop.answer(Message(role="assistant", content="one"))
    assert following == StepResult([Message(role="user", content="second")])
    assert await loop.answer(Message(role="assistant", content="two")) is None
    assert loop.result == "two"


async def test_a_request_that_changes_the_conversation_begins_a_new_path() -> None:
    loop = EpisodeLoop(forgetful, [], "forgetful")
    await loop.begin()
    following = await loop.answer(Message(role="assistant", content="one"))
    assert following is not None
    assert following.fresh
    assert [message.text for message in following.messages] == ["another", "one", "and?"]
    assert await loop.answer(Message(role="assistant", content="two")) is None
    assert loop.result == "two"


async def test_requests_at_once_are_answered_one_after_another() -> None:
    loop = EpisodeLoop(asks_twice, [], "twice")
    assert [message.text for message in await loop.begin() or ()] == ["left"]
    following = await loop.answer(Message(role="assistant", content="1"))
    assert following == StepResult([Message(role="user", content="right")], fresh=True)
    assert await loop.answer(Message(role="assistant", content="2")) is None
    assert loop.result == "1 2"


async def refusal() -> str:
    loop = EpisodeLoop(offers_more, ["add"], "generous")
    try:
        await loop.begin()
    except EnvError as error:
        return str(error)
    finally:
        await loop.close()
    return ""


@pytest.mark.slow
async def test_a_loop_that_was_refused_is_named_once_and_printed_by_nobody_else() -> None:
    """The library's task failed as well, after its episode: asyncio printed it while other code ran."""
    printed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
    assert "generous offers the tools ['search'] at this turn, and ['add'] at the beginning" in await refusal()
    await asyncio.sleep(0)
    gc.collect()
    assert not printed


async def test_arguments_that_nest_too_deeply_are_no_fault_of_the_loop() -> None:
    """They are the model's: the error of the decoder was taken for one of the environment's code, and ended the run."""
    call = ToolCall(id="c", function=FunctionCall(name="add", arguments="[" * 5000))
    loop = EpisodeLoop(echo, [], "echo")
    await loop.begin()
    assert await loop.answer(Message(role="assistant", content="", tool_calls=[call])) is not None
    await loop.close()


@pytest.mark.parametrize("asks_again", [False, True])
async def test_a_loop_that_no_longer_waits_for_the_turn_goes_on_as_it_likes(asks_again: bool) -> None:
    too_slow = asyncio.Event()

    async def hasty(ask: Ask) -> str:
        asking = asyncio.ensure_future(ask([Message(role="user", content="quick")], []))
        await too_slow.wait()
        asking.cancel()
        return (await ask([Message(role="user", content="now?")], [])).text if asks_again else "too slow"

    loop = EpisodeLoop(hasty, [], "hasty")
    await loop.begin()
    too_slow.set()
    async with asyncio.timeout(60):
        following = await loop.answer(Message(role="assistant", content="late"))
        if asks_again:
            assert following == StepResult([Message(role="user", content="now?")], fresh=True)
            following = await loop.answer(Message(role="assistant", content="yes"))
    assert following is None
    assert loop.result == ("yes" if asks_again else "too slow")


async def test_a_loop_that_is_cut_off_gets_the_error_for_each_request() -> None:
    loop = EpisodeLoop(asks_twice, [], "twice")
    await loop.begin()
    async with asyncio.timeout(60):
        with pytest.raises(EnvError, match="cut off"):
            await loop.end(EnvError("cut off"))


@pytest.mark.slow
async def test_a_loop_that_ignores_its_end_gets_no_further_turn() -> None:
    """It waited for an answer that nobody gave any more, for ever."""
    errors: list[str] = []

    async def stubborn(ask: Ask) -> None:
        for _ in range(2):
            try:
                await ask([Message(role="user", content="first")], [])
            except asyncio.CancelledError:
                continue
            except EnvError as error:
                errors.append(str(error))

    loop = EpisodeLoop(stubborn, [], "stubborn")
    await loop.begin()
    await loop.close()
    assert errors == ["stubborn asks its model after the episode's end"]
