"""`agent="verl:file.py:Loop tokenizer=FOLDER"`: agent loops of verl (`AgentLoopBase`).

A loop is built as verl's worker builds it, with a server manager that asks the session's gateway for tokens behind
tokens. Of what it returns `reward_score` is the session's reward; its tokens are in the session's tree already.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.common.foreign_errors import words
from agentrl.common.imports import load
from agentrl.envs.adapters.continuations import Program, continue_prompt, count_of, give_reward, sampling_of
from agentrl.envs.adapters.slime import tokenizer_of
from agentrl.envs.builtin.prompts import messages_of
from agentrl.errors import ConfigError
from agentrl.types import Task

LOOPS = "verl.experimental.agent_loop.agent_loop"
DEFAULTS: dict[str, Any] = {
    "actor_rollout_ref": {
        "rollout": {
            **{"prompt_length": 4096, "response_length": 1024, "full_determinism": False},
            "multi_turn": {
                **{"max_user_turns": None, "max_assistant_turns": None, "max_parallel_calls": 1, "format": "hermes"},
                **{"max_tool_response_length": 4096, "tool_response_truncate_side": "middle"},
                **{"interaction_config_path": None, "tool_config_path": None},
            },
        },
        "model": {"path": None},
    },
    "data": {"apply_chat_template_kwargs": {}, "mm_processor_kwargs": {}},
}
"""The part of verl's configuration that its own loops read."""


class ServerManager:
    """Asks the session's gateway; loops call it as verl's own."""

    def __init__(self, client: Any, most: int, output: Any) -> None:
        self._client, self._most, self._output = client, most, output

    async def generate(
        self, request_id: str = "", *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **parts: Any
    ) -> Any:
        """The policy's tokens behind a prompt's; ConfigError where the loop sends images, video or sound."""
        seen = [name for name in ("image_data", "video_data", "audio_data") if parts.get(name)]
        if seen:
            raise ConfigError(f"a loop of verl sent {seen[0]}: allowed: text")
        most = int(sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens") or self._most)
        drawn = sampling_of(sampling_params)
        found = await continue_prompt(self._client, list(prompt_ids), most, sampling_params.get("stop") or (), drawn)
        return self._output(token_ids=found.token_ids, log_probs=found.logprobs, stop_reason="completed")


def load_loop(path: str, settings: dict[str, Any], where: str) -> Program:
    """Return a loop as an agent program.

    Args:
        path: of its class.
        settings: `tokenizer` (a folder), `config` (a file with verl's configuration), `tools` (a file of tools as
            verl's `tool_config_path`); others are settings of `actor_rollout_ref.rollout`.
        where: names the agent in messages.

    Raises:
        ConfigError: verl is not installed, or the class is no loop.
    """
    folder, tools, file = (settings.pop(name, None) for name in ("tokenizer", "tools", "config"))
    if not folder:
        raise ConfigError(f"{where}: a loop needs a tokenizer: add tokenizer=FOLDER, the model's, behind its name")
    for name, given in (("tools", tools), ("config", file)):
        if given is not None and not Path(str(given)).is_file():
            raise ConfigError(f"{where}: {name}={given!r}: there is no such file")
    base = _of_verl(f"{LOOPS}:AgentLoopBase", where)
    loop = load(path, where)
    if not (isinstance(loop, type) and issubclass(loop, base)):
        raise ConfigError(f"{where} is {loop!r:.80}: allowed: a subclass of verl's AgentLoopBase")
    tokenizer_of(folder)  # now: otherwise every session would fail by it
    config = _config(file, settings, where)
    count_of(config.actor_rollout_ref.rollout.response_length, "response_length", where)

    async def agent(task: Task, client: Any) -> None:
        rollout = config.actor_rollout_ref.rollout
        drawn = {"temperature": 1.0, "top_p": 1.0, "logprobs": True, "max_tokens": rollout.response_length}
        output = _of_verl("verl.workers.rollout.replica:TokenOutput", where)
        made = loop(
            trainer_config=_of_verl(f"{LOOPS}:DictConfigWrap", where)(config),
            server_manager=ServerManager(client, rollout.response_length, output),
            tokenizer=tokenizer_of(folder),
            processor=None,
            dataset_cls=None,
            data_config=_of_verl(f"{LOOPS}:DictConfigWrap", where)(config.data),
            tools=_of_verl(f"{LOOPS}:ToolListWrap", where)(_tools(tools)),
        )
        row = copy.deepcopy(task.data)
        messages = [each.model_dump(exclude_none=True) for each in messages_of(task)]
        done = await made.run(drawn, raw_prompt=messages, **_columns(row))
        if getattr(done, "reward_score", None) is not None:
            await give_reward(client, done.reward_score)

    return agent


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    """A row's columns as verl's data set hands them on: `tools_kwargs` and `index` are those of `extra_info`."""
    extra = row.get("extra_info") or {}
    own = {name: value for name, value in row.items() if name not in ("prompt", "raw_prompt")}
    return {"tools_kwargs": extra.get("tools_kwargs", {}), "index": extra.get("index", 0), "extra_info": extra} | own


def _config(file: Any, settings: Mapping[str, Any], where: str) -> Any:
    """The configuration: the defaults, a file's, and settings of the rollout."""
    omegaconf = _of_verl("omegaconf:OmegaConf", where)
    try:
        parts = [omegaconf.create(DEFAULTS), *([omegaconf.load(file)] if file else [])]
        return omegaconf.merge(*parts, {"actor_rollout_ref": {"rollout": dict(settings)}})
    except Exception as error:  # no YAML, or no mapping
        raise ConfigError(f"{where}: config={file!r} can't be read: {words(error)}") from error


@cache
def _tools(file: str | None) -> list[Any]:
    """The tools of a file, which all sessions share as in verl's worker."""
    if file is None:
        return []
    made: list[Any] = _of_verl("verl.tools.tool_registry:load_all_tools", f"tools={file!r}")(file, None)
    return made


def _of_verl(path: str, where: str) -> Any:
    """An object of verl's; the error names what is missing."""
    try:
        return load(path, where)
    except ConfigError as error:
        raise ConfigError(f"{error} (a loop needs verl and what it imports in this environment)") from error
