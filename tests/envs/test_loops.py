"""A library's own loop is played turn by turn, and leaves nothing behind that asyncio would complain of."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.envs.adapters.loops import Ask, Loop
from agentrl.errors import EnvError
from agentrl.types import FunctionCall, Message, ToolCall


async def echo(ask: Ask) -> str:
    said = await ask([Message(role="user", content="first")], [])
    told = [Message(role="user", content="first"), said, Message(role="user", content="second")]
    return (await ask(told, [])).text


async def forgetful(ask: Ask) -> str:
    said = await ask([Message(role="user", content="first")], [])
    return (await ask([Message(role="user", content="another"), said, Message(role="user")], [])).text


async def test_a_loop_is_played_turn_by_turn_to_what_it_returns() -> None:
    loop = Loop(echo, [], "echo")
    assert [message.text for message in await loop.begin() or ()] == ["first"]
    assert [message.text for message in await loop.answer(Message(role="assistant", content="one")) or ()] == ["second"]
    assert await loop.answer(Message(role="assistant", content="two")) is None
    assert loop.result == "two"


async def refusal() -> str:
    loop = Loop(forgetful, [], "forgetful")
    await loop.begin()
    try:
        await loop.answer(Message(role="assistant", content="one"))
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
    assert "forgetful changes message 0 (user)" in await refusal()
    await asyncio.sleep(0)
    gc.collect()
    assert not printed


async def test_arguments_that_nest_too_deeply_are_no_fault_of_the_loop() -> None:
    """They are the model's: the error of the decoder was taken for one of the environment's code, and ended the run."""
    call = ToolCall(id="c", function=FunctionCall(name="add", arguments="[" * 5000))
    loop = Loop(echo, [], "echo")
    await loop.begin()
    assert await loop.answer(Message(role="assistant", content="", tool_calls=[call])) is not None
    await loop.close()


async def gives_up(ask: Ask) -> str:
    try:
        async with asyncio.timeout(0):
            await ask([Message(role="user", content="quick")], [])
    except TimeoutError:
        return "too slow"
    return "answered"


async def asks_again(ask: Ask) -> str:
    await gives_up(ask)
    return (await ask([Message(role="user", content="now?")], [])).text


async def test_a_loop_that_no_longer_waits_for_the_turn_ends_as_it_likes() -> None:
    loop = Loop(gives_up, [], "hasty")
    await loop.begin()
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        assert await loop.answer(Message(role="assistant", content="late")) is None
    assert loop.result == "too slow"


async def late(loop: Loop[str]) -> object:
    return await loop.answer(Message(role="assistant", content="late"))


async def cut_off(loop: Loop[str]) -> object:
    return await loop.end(EnvError("cut off"))


@pytest.mark.parametrize("go_on", [late, cut_off])
async def test_a_loop_that_asks_anew_while_its_turn_is_written_is_refused(go_on: Callable[[Any], Any]) -> None:
    loop = Loop(asks_again, [], "hasty")
    await loop.begin()
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        with pytest.raises(EnvError, match="hasty asks its model for two turns at once"):
            await go_on(loop)


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

    loop = Loop(stubborn, [], "stubborn")
    await loop.begin()
    await loop.close()
    assert errors == ["stubborn asks its model after the episode's end"]
