"""The columns of a row that are taken for a conversation, by the names that frameworks and data sets have for them.

Where several kinds of conversation are in a row, or a text may be a message as well as plain text, nothing is guessed:
the error names the setting that decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.config.data import DataConfig
from agentrl.envs.data.rows import decode_messages
from agentrl.errors import ConfigError
from agentrl.rollout.sources.messages import Example, MessageReader, parse_json, transcript
from agentrl.tools.schema import show_value

OURS = ("messages", "prompt", "completion", "text", "tools", "system", "chosen", "rejected", "scored", "label")
MESSAGES = {"messages": "TRL, OpenAI", "conversations": "ShareGPT", "conversation": "ShareGPT"}
PROMPTS: Mapping[tuple[str, str], tuple[str, bool]] = {
    ("prompt", "completion"): ("TRL", False),
    ("prompt", "response"): ("verl", True),
    ("instruction", "output"): ("Alpaca", True),
    ("instruction", "response"): ("Dolly", True),
    ("question", "answer"): ("questions and answers", True),
    ("query", "response"): ("queries and responses", True),
    ("problem", "solution"): ("problems and solutions", True),
}
"""Names of a prompt's and a completion's column: who has them, and whether text in them is a user's and an
assistant's message for certain."""
TEXTS = ("text",)
TOOLS = ("tools", "functions")
PAIRS = ("chosen", "rejected")


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns of a file, and what each is taken for.

    Attributes:
        taken: their names by ours.
        known: who has them so; '' where the settings say it.
        chat: whether text in a prompt and a completion is a message; None: that is not known.
    """

    taken: Mapping[str, str]
    known: str = ""
    chat: bool | None = None

    def __str__(self) -> str:
        pairs = ", ".join(f"{ours} = {theirs!r}" for ours, theirs in self.taken.items())
        return pairs + (f" (as {self.known} has them)" if self.known else "")


def choose_columns(row: Mapping[str, Any], config: DataConfig, place: str) -> ColumnChoice:
    """Choose the columns of a row; ConfigError where none fits, or several do."""
    columns = config.columns
    if strange := sorted(columns.keys() - set(OURS)):
        raise ConfigError(f"data.columns.{strange[0]}: rows have {', '.join(OURS)}")
    there = {name for name, value in row.items() if value is not None and name not in columns.keys() - columns.values()}
    there |= set(columns.values())
    beside = {name: name for name in ("system",) if name in there}
    if (tools := next((name for name in TOOLS if name in there), None)) is not None:
        beside["tools"] = tools
    beside |= {ours: columns[ours] for ours in ("tools", "system") if ours in columns}
    fitting = _list_asked(columns, config) or _list_known(there, config)
    if not fitting:
        raise ConfigError(_missing(there, row, config, place))
    if len(fitting) > 1:
        named = " or ".join(
            " ".join(f"data.columns.{ours}={theirs}" for ours, theirs in each.taken.items()) for each in fitting
        )
        raise ConfigError(f"data={config.name}: {place} can be read in {len(fitting)} ways: say which: {named}")
    (chosen,) = fitting
    free = there - set(chosen.taken.values()) if "prompt" in chosen.taken else set()
    extra = {"history": "history"} if "history" in free else {}
    if (about := next((name for name in ("input", "context") if name in free), None)) is not None:
        extra["input"] = about
    if chosen.chat is False:  # plain text has no place for them
        extra = {}
    if "text" in chosen.taken or (chosen.chat is False and "system" not in columns):
        beside.pop("system", None)
    return ColumnChoice({**chosen.taken, **extra, **beside}, chosen.known, chosen.chat)


def _list_asked(columns: Mapping[str, str], config: DataConfig) -> list[ColumnChoice]:
    """The reading that the settings ask for."""
    chat = None if config.strings is None else config.strings == "chat"
    kinds = (("messages",), ("prompt", "completion"), ("text",))
    fitting = [kind for kind in kinds if set(kind) <= columns.keys()]
    return [ColumnChoice({ours: columns[ours] for ours in kind}, chat=chat) for kind in fitting]


def _list_known(there: set[str], config: DataConfig) -> list[ColumnChoice]:
    """The readings by names that are known; a column that the settings name has that name alone."""
    mapped = config.columns
    said = None if config.strings is None else config.strings == "chat"
    found = [ColumnChoice({"messages": name}, who) for name, who in MESSAGES.items() if name in there]
    for (prompt, completion), (who, certain) in PROMPTS.items():
        prompt, completion = mapped.get("prompt", prompt), mapped.get("completion", completion)
        if {prompt, completion} <= there:
            chat = said if said is not None else (True if certain else None)
            found.append(ColumnChoice({"prompt": prompt, "completion": completion}, who, chat))
            if mapped.keys() & {"prompt", "completion"}:
                break
    found += [ColumnChoice({"text": name}, "TRL") for name in TEXTS if name in there]
    return [each for each in found if all(each.taken.get(ours, name) == name for ours, name in mapped.items())]


def conversations_in(row: Mapping[str, Any], config: DataConfig) -> bool:
    """Return whether a row has columns that are known for a conversation."""
    return bool(_list_known({name for name, value in row.items() if value is not None}, config))


def _missing(there: set[str], row: Mapping[str, Any], config: DataConfig, place: str) -> str:
    what = f"data={config.name}: {place} has no column that is known for a conversation (its columns: {', '.join(row)})"
    extra = row.get("extra_info")
    if there >= set(PAIRS):
        return (
            f"data={config.name}: {place} has pairs (chosen, rejected), and algo=sft learns from single conversations: "
            "data.columns.messages=chosen takes the better ones; algo=dpo, simpo, orpo, cpo and kto learn from pairs"
        )
    if "prompt" in there and isinstance(extra, Mapping) and "answer" in extra:
        return (
            f"data={config.name}: {place} has a prompt and no response; what verl's supervised training takes is "
            "data.columns.prompt=extra_info.question data.columns.completion=extra_info.answer data.strings=chat"
        )
    if "prompt" in there:
        return f"{what}: there is a prompt and no response: data.columns.completion=COLUMN names it"
    return (
        f"{what}: data.columns.messages=COLUMN names one with messages, data.columns.prompt= and "
        "data.columns.completion= two with text, data.columns.text= one with plain text"
    )


def read_example(
    row: Mapping[str, Any], chosen: ColumnChoice, config: DataConfig, place: str, reader: MessageReader
) -> Example:
    """Read a row's conversation; ConfigError where the row has none, or its text can be read in two ways."""
    own = {ours: row.get(ours if ours in config.columns else theirs) for ours, theirs in chosen.taken.items()}
    try:
        if "messages" in own:
            return reader.example(place, _after_system(own), own.get("tools"))
        if "text" in own:
            return reader.example(place, [{"role": "assistant", "content": _text(own, "text")}], plain=True)
        return _read_prompted(own, chosen, config, place, reader)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"data={config.name}: {place}: {error}") from None


def _read_prompted(
    own: dict[str, Any], chosen: ColumnChoice, config: DataConfig, place: str, reader: MessageReader
) -> Example:
    prompt, completion = (_messages(own[name], chosen.taken[name]) for name in ("prompt", "completion"))
    lists = [not isinstance(each, str) for each in (prompt, completion)]
    before = [{"role": "system", "content": own["system"]}] if own.get("system") else []
    apart = [name for name in ("system", "input", "history") if own.get(name)]
    whole = any(lists) or chosen.chat is False or {"input", "history"} & set(apart)
    turns = [] if whole else transcript(f"{prompt}{completion}")
    if turns and turns[-1]["role"] == "assistant" and len(transcript(prompt)) == len(turns):
        earlier = [{**each, "train": False} for each in turns[:-1]]
        return reader.example(place, [*before, *earlier, turns[-1]], own.get("tools"))
    if not any(lists) and chosen.chat is None:
        raise ConfigError(
            f"data={config.name}: in {place} the columns {chosen.taken['prompt']!r} and {chosen.taken['completion']!r} "
            "have text: data.strings=chat takes it for a user's and an assistant's message (as verl does), "
            "data.strings=plain as it is (as TRL does)"
        )
    if not any(lists) and not chosen.chat:
        if apart:
            raise ValueError(
                f"there is {chosen.taken[apart[0]]!r} beside {chosen.taken['prompt']!r}, which plain text has no place "
                "for: data.strings=chat takes them for messages"
            )
        texts = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
        return reader.example(place, texts, plain=True)
    if isinstance(prompt, str):
        about = own.get("input")
        prompt = [{"role": "user", "content": prompt + (f"\n\n{about}" if about else "")}]
    if completion is None:
        raise ValueError(f"{chosen.taken['completion']!r} is empty")
    if isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    before += _earlier(own.get("history"), trained="label" not in own)
    context = [{**row, "train": False} if row.get("role") == "assistant" else row for row in prompt]
    return reader.example(place, [*before, *context, *completion], own.get("tools"))


def _messages(value: Any, name: str) -> Any:
    """A column of messages or text: JSON of messages is messages; ValueError where it is neither."""
    found = decode_messages(value)
    if found is not value or value is None or isinstance(value, str) or value == []:
        return found
    raise ValueError(f"{name} is {show_value(value)}: a text or a list of messages is expected")


def _earlier(history: Any, *, trained: bool) -> list[dict[str, Any]]:
    """The turns before a prompt, as LLaMA-Factory has them: pairs of what was asked and answered.

    Args:
        history: the column's value.
        trained: whether the answers are trained as the settings say; a verdict on the reply is not one on them.
    """
    pairs = parse_json(history) or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"'history' is {history!r}: pairs of a question and an answer are expected")
    marks = {} if trained else {"train": False}
    return [
        {"role": role, "content": said, **(marks if role == "assistant" else {})}
        for pair in pairs
        for role, said in zip(("user", "assistant"), pair, strict=True)
    ]


def _after_system(own: Mapping[str, Any]) -> Any:
    """Messages, behind a system message that stands beside them."""
    messages, system = parse_json(own["messages"]), own.get("system")
    if not system or not isinstance(messages, list) or not messages:
        return messages
    first = messages[0] if isinstance(messages[0], Mapping) else {}
    if first.get("role", first.get("from")) != "system":
        return [{"role": "system", "content": system}, *messages]
    if first.get("content", first.get("value")) != system:
        raise ValueError("the column of the system message has another text than the first message")
    return messages


def _text(own: Mapping[str, Any], name: str) -> str:
    value = own[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r}")
    return value
