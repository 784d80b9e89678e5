"""A library's own loop is played turn by turn, and leaves nothing behind that asyncio would complain of."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from agentrl.envs.adapters.loops import Ask, Loop
from agentrl.errors import EnvError
from agentrl.types import Message


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


async def test_a_loop_that_was_refused_is_named_once_and_printed_by_nobody_else() -> None:
    """The library's task failed as well, after its episode: asyncio printed it while other code ran."""
    printed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
    assert "forgetful changes message 0 (user)" in await refusal()
    await asyncio.sleep(0)
    gc.collect()
    assert not printed
