"""`env=nemo_gym:http://HOST:PORT env.path=rows.jsonl`: tasks that a resources server of NeMo Gym scores.

A row of the file has `responses_create_params`, the request to the Responses API that begins an episode (`input`,
`tools`), and what the server's verifier reads besides. The server is sent the row (`POST /seed_session`), each call of
a tool (`POST /NAME` with the arguments), and in the end the row with the response (`POST /verify`), which answers with
the reward; its cookies tell episodes apart. That is what NeMo Gym's own `simple_agent` does. The protocol is spoken
here directly, so that the server's packages and ours never meet.

As there, whatever a tool answers is the model's to read, errors too. A server that is gone, and a reward that the
server itself says is no measurement (`mask_sample`), are infrastructure errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import httpx

from agentrl.common.untrusted import read_json, safe_json
from agentrl.envs.base import Env, reward, reward_value
from agentrl.envs.data.rows import read_tasks, require_file
from agentrl.envs.data.splits import divide
from agentrl.errors import ConfigError, DeadlineExceeded, EnvError, InfraError
from agentrl.tools.registry import MAX_RESULT_CHARS, cut
from agentrl.tools.schema import show_value
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, Session, Task, ToolCall

PARAMS = "responses_create_params"
MAX_BYTES = 2**26
"""Of one answer of the server."""
KEPT = 2**16
"""Characters of what a verifier says besides the reward, which a session keeps."""
SHOWN = 2000
"""Characters of an error that are shown."""
Json = dict[str, Any]


class NemoGym(Env):
    """Tasks of a NeMo Gym resources server, as in env=nemo_gym:http://127.0.0.1:8000; see docs/adapters.md."""

    needs = "a running NeMo Gym resources server"

    def __init__(
        self,
        source: str,
        path: str,
        eval_path: str | None = None,
        steps: int = 30,
        done: bool = False,
        timeout: float = 60.0,
        returns: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """Ask whether there is such a server.

        Args:
            source: the server's address.
            path: the rows, as .jsonl; without `eval_path` a tenth is held out.
            eval_path: another file for the split `eval`.
            steps: turns of an episode, at most.
            done: whether a tool's answer with a true field `done` ends the episode.
            timeout: seconds for each answer of the server.
            returns: the least and the greatest reward that its verifier gives.

        Raises:
            ConfigError: there is no such file, or no such server.
        """
        self.url, self.timeout, self.max_turns, self._ends = source.rstrip("/"), timeout, steps, done
        self.return_range = returns
        self.files = {"train": Path(path).expanduser(), "eval": Path(eval_path or path).expanduser()}
        for key, file in (("path", self.files["train"]), ("eval_path", self.files["eval"])):
            require_file(f"env.{key}", file)
        _find_server(self.url, timeout)
        self._task = Task(id="")
        self._opening = 0
        self._client: httpx.AsyncClient | None = None

    def tasks(self, split: str = "train") -> list[Task]:
        file = self.files["eval" if split == "eval" else "train"]
        tasks = read_tasks(file, _task, "rows of NeMo Gym")
        if self.files["eval"] != self.files["train"]:
            return tasks
        return divide(tasks, split, lambda task: json.dumps(task.data[PARAMS]["input"]), f"env.path = {str(file)!r}")

    def for_task(self, task: Task) -> Env:
        for tool in task[PARAMS].get("tools") or ():
            if tool["name"] not in self.tools:
                schema = tool.get("parameters") or {"type": "object", "properties": {}}
                call = partial(self._call, tool["name"])
                self.tools.add(Tool(tool["name"], tool.get("description") or "", schema, call))
        return self

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        await self.close()
        self.for_task(task)
        self._task = task
        self._client = httpx.AsyncClient(base_url=self.url, timeout=self.timeout, trust_env=False)
        _check("seed_session", *await self._post("seed_session", task.data))
        opening = list(_messages(task[PARAMS]))
        self._opening = len(opening)
        return opening

    def brief(self, task: Task) -> Task:
        return Task(id=task.id, data={PARAMS: task[PARAMS]})

    @reward(range=(float("-inf"), float("inf")))
    async def verified(self, session: Session) -> float:
        """The reward of the server's verifier."""
        excluded = session.excluded_nodes()
        messages = [node.message for node in session.nodes if not node.spawned and node.id not in excluded]
        response = _response(messages[self._opening :], self._task[PARAMS], session.id)
        answer = _check("verify", *await self._post("verify", {**self._task.data, "response": response}))
        said = {key: value for key, value in answer.items() if key != "response" and key not in self._task.data}
        if len(json.dumps(kept := safe_json(said))) <= KEPT:
            session.info["nemo_gym"] = kept
        if answer.get("mask_sample"):
            raise InfraError(f"{self._where}: its reward is no measurement: {answer.get('failure_reason')}")
        given = reward_value(answer.get("reward"), f"{self._where}, as the reward,")
        low, high = self.return_range
        if not low <= given <= high:
            raise EnvError(f"{self._where} gave the reward {given:g}: allowed: env.returns=[{low:g},{high:g}]")
        return given

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @property
    def _where(self) -> str:
        return f"the NeMo Gym server {self.url}"

    async def _call(self, name: str, arguments: Json, _: Any) -> str:
        _, text = await self._post(name, arguments)
        if self._ends and _is_done(text):
            self.end()
        return cut(text, MAX_RESULT_CHARS)

    async def _post(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """Send a request; the status and the text of what is answered."""
        if self._client is None:
            raise InfraError(f"{self._where}: no session is open")
        content = bytearray()
        try:
            async with self._client.stream("POST", f"/{path}", json=safe_json(body, whole=True)) as answer:
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > MAX_BYTES:
                        raise InfraError(f"{self._where} answered {path} with over {MAX_BYTES:,} bytes")
        except httpx.TimeoutException:
            raise DeadlineExceeded(
                f"{self._where} did not answer {path} within env.timeout={self.timeout:g} s"
            ) from None
        except httpx.HTTPError as error:
            raise InfraError(f"{self._where} did not answer {path}: {error!r}") from error
        return answer.status_code, content.decode(errors="replace")


@lru_cache(maxsize=64)
def _find_server(url: str, timeout: float) -> None:
    try:
        answer = httpx.get(f"{url}/openapi.json", timeout=timeout, trust_env=False)
        paths = answer.raise_for_status().json()["paths"]
        missing = {"/seed_session", "/verify"} - set(paths)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"env=nemo_gym:{url}: no server answers {url}/openapi.json: {error!r}") from error
    if missing:
        raise ConfigError(f"env=nemo_gym:{url}: it is no resources server: it lacks {', '.join(sorted(missing))}")


def _check(path: str, status: int, text: str) -> Json:
    """An answer that has to be a success, as an object."""
    if 400 <= status < 500:
        raise EnvError(f"the NeMo Gym server refuses the row of {path}: {cut(text, SHOWN)}")
    try:
        answer = read_json(text)
    except ValueError:
        answer = None
    if status != 200 or not isinstance(answer, dict):
        raise InfraError(f"the NeMo Gym server answered {path} with status {status}: {show_value(text)}")
    return answer


def _task(row: Mapping[str, Any], number: int) -> Task:
    params = row[PARAMS]
    if not isinstance(params, Mapping) or not params.get("input"):
        raise ValueError(f"{PARAMS}.input is missing")
    list(_messages(params))
    for tool in params.get("tools") or ():
        if tool.get("type") != "function" or not tool.get("name"):
            raise ValueError(f"a tool is {show_value(tool)}: allowed: functions with a name")
    return Task(id=str(row.get("id") or row.get("task_id") or f"row-{number}"), data=dict(row))


def _messages(params: Mapping[str, Any]) -> Iterator[Message]:
    if params.get("instructions"):
        yield Message(role="system", content=str(params["instructions"]))
    given = params["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "message":
            yield Message.model_validate({"role": item["role"], "content": _text(item["content"])})
        elif kind == "function_call":
            call = ToolCall(id=item["call_id"], function=FunctionCall(name=item["name"], arguments=item["arguments"]))
            yield Message(role="assistant", tool_calls=[call])
        elif kind == "function_call_output":
            yield Message(role="tool", tool_call_id=item["call_id"], content=_text(item["output"]))
        elif kind != "reasoning":
            raise ValueError(f"{PARAMS}.input has an item of the type {kind!r}: allowed: messages and function calls")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if odd := next((part for part in content if "text" not in part), None):
        raise ValueError(f"{PARAMS}.input has content of the type {odd.get('type')!r}: allowed: text")
    return "".join(str(part["text"]) for part in content)


def _response(messages: Sequence[Message], params: Mapping[str, Any], name: str) -> Json:
    return {
        "id": f"resp_{name}",
        "created_at": 0,
        "model": "agentrl",
        "object": "response",
        "output": [item for number, message in enumerate(messages) for item in _items(message, number)],
        "parallel_tool_calls": bool(params.get("parallel_tool_calls", True)),
        "tool_choice": params.get("tool_choice") or "auto",
        "tools": params.get("tools") or [],
    }


def _items(message: Message, number: int) -> Iterator[Json]:
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.text}
        return
    if message.role != "assistant":
        yield {"type": "message", "role": message.role, "content": message.text}
        return
    if message.reasoning_content:
        summary = [{"type": "summary_text", "text": message.reasoning_content}]
        yield {"type": "reasoning", "id": f"rs_{number}", "summary": summary}
    if message.text or not message.tool_calls:
        said = [{"type": "output_text", "text": message.text, "annotations": []}]
        about = {"id": f"msg_{number}", "role": "assistant", "status": "completed"}
        yield {"type": "message", **about, "content": said}
    for place, call in enumerate(message.tool_calls or ()):
        about = {"id": f"fc_{number}_{place}", "call_id": call.id, "status": "completed"}
        yield {"type": "function_call", **about, "name": call.function.name, "arguments": call.function.arguments}


def _is_done(text: str) -> bool:
    try:
        answer = read_json(text)
    except ValueError:
        return False
    return isinstance(answer, dict) and bool(answer.get("done"))
