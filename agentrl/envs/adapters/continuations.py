"""Tokens behind a prompt, as agents of slime and verl ask for them, of the session's gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError
from agentrl.types import Task

Program = Callable[[Task, Any], Awaitable[None]]
"""`async def agent(task, client)`."""
MODEL = "policy"


@dataclass(frozen=True)
class Continuation:
    """Sampled tokens behind a prompt of so many; `finish_reason` is `stop` or `length`."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    prompt_tokens: int


async def continue_prompt(
    client: Any, prompt: str | list[int], most: int, stop: Sequence[str], more: Mapping[str, Any]
) -> Continuation:
    """Have the session's policy continue a text or tokens.

    Args:
        client: of the session's gateway.
        prompt: text or token ids.
        most: tokens.
        stop: strings that end it.
        more: sampling parameters, which count with `gateway.sampling=client`.
    """
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": most}
    body |= {"logprobs": 0, "return_token_ids": True, **more, **({"stop": list(stop)} if stop else {})}
    reply = await client.post("/completions", body=body, cast_to=object)
    choice = reply["choices"][0]
    logprobs = list(choice["logprobs"]["token_logprobs"])
    used = int(reply["usage"]["prompt_tokens"])
    return Continuation(choice["text"], list(choice["token_ids"]), logprobs, choice["finish_reason"], used)


def count_of(value: Any, name: str, where: str) -> int:
    """Return a number of tokens that is set; ConfigError where it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}: {name}={value!r}: allowed: a whole number of tokens from 1 on")
    return value


async def give_reward(client: Any, value: Any) -> None:
    """Give the session its final reward."""
    root = str(client.base_url).rstrip("/").removesuffix("/v1")
    await client.post(f"{root}/reward", body={"value": float(value)}, cast_to=object)


def sampling_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of SGLang's sampling parameters that the gateway knows."""
    known = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
    return {name: given[name] for name in known if given.get(name) is not None}
