"""Agents of slime and verl: `agent="slime:file.py:generate …"`, `agent="verl:file.py:Loop …"`.

Both ask for tokens behind tokens. Here they ask the session's gateway, whose tree keeps what was sampled: so what is
trained is what the engine drew, and a mask that they return is not needed. Words behind the path are settings, as in
`tokenizer=FOLDER`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from agentrl.common.foreign_errors import words
from agentrl.envs.adapters import slime
from agentrl.envs.adapters.continuations import MODEL, Program, continue_prompt, count_of, give_reward, sampling_of
from agentrl.envs.adapters.verl_loops import load_loop
from agentrl.errors import AgentError, AgentRLError, ConfigError, InfraError
from agentrl.types import Task


def is_foreign(agent: str) -> bool:
    """Return whether an agent's name is one of another framework's function."""
    return agent.strip().startswith(("slime:", "verl:"))


def load_program(agent: str) -> Program:
    """Return a function of slime or a loop of verl as an agent program.

    Raises:
        ConfigError: it can't be read or loaded, or a setting is none.
    """
    where = f"agent={agent!r}"
    try:
        named, *parts = shlex.split(agent)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    wrong = [part for part in parts if "=" not in part]
    if wrong:
        raise ConfigError(f"{where}: {wrong[0]!r} is no setting: allowed: NAME=VALUE behind the path")
    settings = {name: _read(name, value, where) for name, _, value in (part.partition("=") for part in parts)}
    kind, _, path = named.partition(":")
    if kind == "slime":
        return _generate(path, settings, where)
    return load_loop(path, settings, where)


def _read(name: str, value: str, where: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"{where}: {name}={value!r}: allowed: a value in YAML, as in {name}=[1,2]") from None


def _generate(path: str, settings: dict[str, Any], where: str) -> Program:
    """A custom generate function of slime.

    Settings: `tokenizer` (a folder), `rm` (a reward function of slime, called with the sample), `apply_chat_template`,
    `max_new_tokens`; any other is an attribute of `args`.
    """
    folder, rewarding = settings.pop("tokenizer", None), settings.pop("rm", None)
    most = count_of(settings.pop("max_new_tokens", slime.SETTINGS["rollout_max_response_len"]), "max_new_tokens", where)
    generate = slime.load_function(path, where)
    rm = slime.load_function(rewarding, f"{where}, rm={rewarding!r}") if rewarding else None
    for name, function in (("generate", generate), ("rm", rm)):
        if function is not None and not inspect.iscoroutinefunction(function):
            raise ConfigError(f"{where}: {name} is {function!r:.80}: allowed: an `async def`")
    if folder is not None:
        slime.tokenizer_of(folder)  # now: otherwise every session would fail by it
    elif settings.get("apply_chat_template"):
        raise ConfigError(f"{where}: apply_chat_template=true needs tokenizer=FOLDER, the model's")
    args = slime.arguments_of(settings, hf_checkpoint=folder, rollout_max_response_len=most)

    async def agent(task: Task, client: Any) -> None:
        sample = slime.sample_of(task)
        if args.apply_chat_template and not isinstance(sample.prompt, str):
            template = slime.tokenizer_of(folder).apply_chat_template
            sample.prompt = template(sample.prompt, tokenize=False, add_generation_prompt=True)

        async def ask(url: str, payload: Mapping[str, Any]) -> Any:
            return await _answer(client, url, payload, most)

        slime.ASKED.set(ask)
        drawn = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": most}
        sample = await generate(args, sample, drawn)
        if sample is None or isinstance(sample, list):
            raise ConfigError(f"{where} returned {sample!r:.80}: allowed: a sample")
        if sample.status in (type(sample).Status.ABORTED, type(sample).Status.FAILED):
            raise AgentError(f"{where}: the sample's status is {sample.status.value}")
        if rm is not None:
            sample.reward = await _reward(rm, args, sample, where)
        if sample.reward is not None:
            await give_reward(client, sample.get_reward_value(args))

    return agent


async def _reward(rm: Any, args: Any, sample: Any, where: str) -> Any:
    """The sample's reward; as with every reward, a failure is the infrastructure's."""
    try:
        return await rm(args, sample)
    except (AgentRLError, NameError, ImportError, SyntaxError):
        raise
    except Exception as error:
        raise InfraError(f"{where}: rm raised {words(error)}") from error


async def _answer(client: Any, url: str, payload: Mapping[str, Any], most: int) -> Any:
    """Answer a request that a function of slime makes to SGLang's router."""
    if payload.get("image_data"):
        raise ConfigError("a function of slime sent image_data: allowed: text")
    if url.endswith("/v1/chat/completions"):
        return await client.post("/chat/completions", body={"model": MODEL, **payload}, cast_to=object)
    if not url.endswith("/generate"):
        raise ConfigError(f"a function of slime asked {url}: allowed: /generate and /v1/chat/completions")
    prompt = payload["input_ids"] if payload.get("input_ids") else payload["text"]
    given = payload.get("sampling_params") or {}
    stop = given.get("stop") or ()
    stop = [stop] if isinstance(stop, str) else stop
    limit = int(given.get("max_new_tokens") or most)
    found = await continue_prompt(client, prompt, limit, stop, sampling_of(given))
    logged = [[logp, token, None] for logp, token in zip(found.logprobs, found.token_ids, strict=True)]
    meta = {
        "finish_reason": {"type": found.finish_reason, "length": len(found.token_ids)},
        "output_token_logprobs": logged,
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": len(found.token_ids),
        "cached_tokens": 0,
    }
    return {"text": found.text, "output_ids": found.token_ids, "meta_info": meta}
