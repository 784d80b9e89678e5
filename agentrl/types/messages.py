"""Messages in the OpenAI chat shape, tasks, and the responses of environments."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PrivateAttr, model_validator

from agentrl.common.pictures import data_url, url_of
from agentrl.common.plain import plain
from agentrl.common.untrusted import safe_text

Text = Annotated[str, AfterValidator(safe_text)]
"""Text that can be encoded: whoever wrote it, lone surrogates are replaced as it enters a message."""


class FunctionCall(BaseModel):
    """The function that a model calls; `arguments` is JSON text, exactly as the model wrote it."""

    model_config = ConfigDict(extra="forbid")
    name: Text
    arguments: Text = "{}"


class ToolCall(BaseModel):
    """One tool call in an assistant message.

    `error` is set where the model's text could not be parsed as a call: it describes the problem for the model,
    and is returned as the tool's result instead of running anything.
    """

    model_config = ConfigDict(extra="forbid")
    id: Text
    type: Literal["function"] = "function"
    function: FunctionCall
    error: Text | None = None


class Part(BaseModel):
    """A piece of a message's content: text, or an image by a data URL.

    A text stands for a part of it, and so do bytes, a `Path` and a PIL image, also in `{"type": "image", "image": …}`.
    Text is never read as a path here: it may come from others, who are not to read files.
    """

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "image_url"]
    text: Text | None = None
    image_url: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_source(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"type": "text", "text": value}
        if isinstance(value, Mapping) and value.get("type") == "image" and "image" in value:
            value = value["image"]
        if isinstance(value, Mapping | Part):
            return value
        url = url_of(value) if isinstance(value, str) else data_url(value)
        return {"type": "image_url", "image_url": {"url": url}}

    @property
    def image(self) -> str | None:
        """The image's URL; None for text."""
        return None if self.image_url is None else str(self.image_url.get("url", ""))


def image(source: Any) -> Part:
    """An image as a part of a message's content, checked.

    Args:
        source: bytes of a PNG, JPEG, GIF or WebP file, its path, a PIL image, or a data URL.

    Raises:
        InvalidInput: it is none of these, too large, broken, or a URL of the network.
    """
    return Part(type="image_url", image_url={"url": data_url(source)})


class Message(BaseModel):
    """One message in the OpenAI chat shape, with the reasoning that several providers add to it."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None
    reasoning_content: Text | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None
    name: Text | None = None

    @property
    def text(self) -> str:
        """The content's text alone ('' where there is none)."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""

    @property
    def images(self) -> list[str]:
        """The URLs of the content's images, in order."""
        parts = self.content if isinstance(self.content, list) else ()
        return [url for part in parts if (url := part.image) is not None]


def order_results(above: Message | None, messages: Sequence[Message]) -> list[Message]:
    """Put the results of a turn's calls in the order of the calls, by their ids.

    Clients send them as the tools end, and many formats tell a result's call by its place alone. Results whose ids
    are not those of the calls, or not different, stay as they are.
    """
    ordered: list[Message] = []
    before = above
    for are_results, group in itertools.groupby(messages, lambda message: message.role == "tool"):
        run = list(group)
        if are_results and before is not None:
            places = {call.id: place for place, call in enumerate(before.tool_calls or ())}
            ids = {str(result.tool_call_id) for result in run}
            if len(ids) == len(run) and ids <= places.keys():
                run.sort(key=lambda result: places[str(result.tool_call_id)])
        ordered += run
        before = run[-1]
    return ordered


def _as_name(value: Any) -> Any:
    """An id that is a number, of Python or another library, as text."""
    found = plain(value)
    return str(found) if isinstance(found, int | float) else found


class Task(BaseModel):
    """One problem. `data` holds whatever the environment needs; `task["key"]` reads it."""

    model_config = ConfigDict(extra="forbid")
    id: Annotated[str, BeforeValidator(_as_name)]
    data: dict[str, Any] = {}
    _environment: str = PrivateAttr("")

    @property
    def environment(self) -> str:
        """The part of a mixture of environments that the task is from; '' elsewhere. It is not stored."""
        return self._environment

    def of_part(self, environment: str) -> Task:
        """The same task, as one of that part of a mixture."""
        own = self.model_copy()
        own._environment = environment
        return own

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return `data[key]`, or `default` if the key is missing."""
        return self.data.get(key, default)

    @classmethod
    def of(cls, task: Task | Mapping[str, Any], index: int = 0) -> Task:
        """A task from a mapping; its id is the mapping's own "id" or else `index`."""
        return task if isinstance(task, Task) else cls(id=str(task.get("id", index)), data=dict(task))


@dataclass(slots=True)
class StepResult:
    """An environment's response to an assistant message.

    `messages` and `reward` are for the agent that wrote it. `continuation`, instead of messages, is text that is
    inserted into its own message, which it then goes on with (`Env.stop_strings`). `terminated`: the task reached an
    end of its own. `truncated`: a limit cut it off (Gymnasium's distinction). Where an environment has several agents,
    `others` are the messages for agents besides the one that wrote, `rewards` the step rewards for their newest turns,
    and `next` is the agent whose turn it is, or those that move at once; None is the next one in the order of the
    opening, or all of them (`Env.simultaneous`). `fresh`: the agent that wrote goes on with these messages alone, on a
    path of their own (compaction); what it wrote before stays trained.
    """

    messages: list[Message] = field(default_factory=list)
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    others: dict[str, list[Message]] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    next: str | Sequence[str] | None = None
    continuation: str | None = None
    fresh: bool = False


def parse_arguments(call: ToolCall) -> dict[str, Any]:
    """A call's arguments as a mapping, without lone surrogates, which no file or database takes.

    Raises:
        ToolArguments: they are not a JSON object.
    """
    from agentrl.errors import ToolArguments

    try:
        value = json.loads(call.function.arguments or "{}")
        if "\\ud" in call.function.arguments.casefold():  # may be half of a pair, written as an escape
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of thousands of digits
        raise ToolArguments(f"arguments of {call.function.name!r} are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ToolArguments(f"arguments of {call.function.name!r} must be a JSON object, not {type(value).__name__}")
    return value


def as_messages(value: str | Message | Mapping[str, Any] | Iterable[Any]) -> list[Message]:
    """Messages from what an environment may return: text (a user message), a message, a dict, or a list of them."""
    if isinstance(value, str | bytes | Message | Mapping) or not isinstance(value, Iterable):
        return [_as_message(value)]
    return [_as_message(each) for each in value]


def _as_message(value: Any) -> Message:
    if isinstance(value, Message):
        return value
    if isinstance(value, str):
        return Message(role="user", content=value)
    if isinstance(value, Mapping):
        return Message.model_validate(value)
    kind = type(value).__name__
    raise TypeError(f"allowed are text, a mapping with role and content, and a Message; it is of the type {kind}")
