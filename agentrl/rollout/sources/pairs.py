"""Rows that compare replies: a better and a worse one, several with scores, or one with a verdict.

Each is read into conversations with rewards (`Example.reward`), of which only what follows their common prompt is
trained. The algorithms over pairs and labels make of these what they make of sessions that were sampled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.columns import ColumnChoice, choose_columns, conversations_in, read_example
from agentrl.rollout.sources.messages import ROLES, SHAREGPT, Example, MessageReader, parse_json, transcript

Compared = Literal["pairs", "labels"]
"""The form in which an algorithm compares replies; see `Needs.pairs` and `Needs.labels`."""
PREFERRED = ("chosen", "rejected")
REPLIES: Mapping[tuple[str, str], str] = {PREFERRED: "TRL", ("preferred_output", "non_preferred_output"): "OpenAI"}
ASKED: Mapping[str, bool] = {"prompt": False, "question": True, "instruction": True, "query": True}
"""Columns of a pair's prompt that may be text, and whether such text is a user's message for certain."""
LISTED = ("messages", "conversations", "input.messages")
"""Columns of a pair's prompt that are messages."""
TOOLS = ("tools", "functions", "input.tools")
SCORED = ("completions", "responses")
"""Columns with several replies to one prompt, each with a score."""
TEXTS, SCORES = ("response", "completion", "content", "text"), ("overall_score", "score", "reward", "rating")
"""The fields of such a reply."""
LABELS = ("label", "kto_tag")
VERDICTS = {
    **dict.fromkeys(("true", "1", "yes", "good", "desirable", "chosen"), 1.0),
    **dict.fromkeys(("false", "0", "-1", "no", "bad", "undesirable", "rejected"), 0.0),
}
"""Verdicts on a reply as data sets write them."""


def choose_compared(row: Mapping[str, Any], config: DataConfig, place: str, compared: Compared) -> ColumnChoice:
    """Choose the columns of a row that compares replies; ConfigError where none fits, or several do."""
    columns = config.columns
    there = {name for name, value in row.items() if value is not None} | set(columns.values())
    replies = [
        (columns.get("chosen", chosen), columns.get("rejected", rejected), who)
        for (chosen, rejected), who in REPLIES.items()
    ]
    for chosen, rejected, who in replies:
        if {chosen, rejected} <= there:
            return _add_prompt(row, there, config, {"chosen": chosen, "rejected": rejected}, who)
        if (chosen in there) != (rejected in there) and not (compared == "labels" and "label" in columns):
            one, other = ("chosen", "rejected") if chosen in there else ("rejected", "chosen")
            raise ConfigError(
                f"data={config.name}: {place} has {one} and no {other} (its columns: {', '.join(row)}): "
                f"data.columns.{other}=COLUMN names it"
            )
    several = columns.get("scored") or next((name for name in SCORED if _is_scored(row.get(name))), None)
    if several is not None:
        return _add_prompt(row, there, config, {"scored": several}, "UltraFeedback")
    label = columns.get("label") or next((name for name in LABELS if name in there), None)
    if compared == "labels" and label is not None:
        found = choose_columns(row, config, place)
        return replace(found, taken={**found.taken, "label": label})
    raise ConfigError(_missing(row, config, place, compared, label))


def _add_prompt(
    row: Mapping[str, Any], there: set[str], config: DataConfig, replies: dict[str, str], who: str
) -> ColumnChoice:
    """The replies' columns with those of the prompt, of tools and of a system message."""
    known = {**ASKED, **dict.fromkeys(LISTED, True)}
    names = [config.columns["prompt"]] if "prompt" in config.columns else known
    prompt = next((name for name in names if name in there or column(row, name) is not None), None)
    taken = dict(replies) if prompt is None else {"prompt": prompt, **replies}
    if tools := next((name for name in TOOLS if column(row, name) is not None), None):
        taken["tools"] = tools
    if prompt not in LISTED and config.strings != "plain":  # plain text has no place for them
        beside = {"system", "input"} - set(taken.values())
        taken |= {name: name for name in sorted(beside) if isinstance(row.get(name), str)}
    taken |= {ours: config.columns[ours] for ours in ("tools", "system") if ours in config.columns}
    chat = config.strings == "chat" if config.strings is not None else known.get(prompt or "") or None
    return ColumnChoice(taken, "" if config.columns.keys() & replies.keys() else who, chat)


def _missing(row: Mapping[str, Any], config: DataConfig, place: str, compared: Compared, label: str | None) -> str:
    what = f"data={config.name}: {place} has no pair (its columns: {', '.join(row)}): "
    named = "data.columns.chosen=COLUMN data.columns.rejected=COLUMN name one"
    if compared == "labels":
        return (
            f"data={config.name}: {place} has no label and no pair (its columns: {', '.join(row)}): "
            f"data.columns.label=COLUMN names a column of true and false, {named}"
        )
    if label is not None:
        return f"{what}it has the verdict {label!r} on one reply, which algo=kto learns from; {named}"
    if conversations_in(row, config):
        return f"{what}it has one conversation, which algo=sft learns from; {named}"
    return what + named


def read_compared(
    row: Mapping[str, Any], chosen: ColumnChoice, config: DataConfig, place: str, reader: MessageReader
) -> list[Example]:
    """Read a row's conversations with their rewards: two of 1 and 0, several with scores, or one of 1 or 0.

    Without a prompt the conversations are whole, and what all of them begin with is the prompt.

    Raises:
        ConfigError: a column is empty, or text can be read in two ways; the error names the row and the column.
    """
    own = {ours: row.get(ours) if ours in config.columns else column(row, at) for ours, at in chosen.taken.items()}
    try:
        if "label" in own:
            example = read_example(row, chosen, config, place, reader)
            last = len(example.messages) - 1
            marks = tuple(None if n == last else False for n in range(len(example.messages)))
            trained = example.trained if "prompt" in own else marks
            return [replace(example, trained=trained, reward=_verdict(own["label"], chosen.taken["label"]))]
        if "scored" in own:
            replies = [(_field(each, TEXTS), _number(_field(each, SCORES))) for each in parse_json(own["scored"])]
        else:
            replies = [(own["chosen"], 1.0), (own["rejected"], 0.0)]
        names = [chosen.taken["scored"]] * len(replies) if "scored" in own else [chosen.taken[n] for n in PREFERRED]
        return list(_read(own, replies, names, chosen, config, place, reader))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"data={config.name}: {place}: {error}") from None


def _read(
    own: Mapping[str, Any],
    replies: Sequence[tuple[Any, float]],
    names: Sequence[str],
    chosen: ColumnChoice,
    config: DataConfig,
    place: str,
    reader: MessageReader,
) -> Iterator[Example]:
    prompt = parse_json(own.get("prompt"))
    listed = [parse_json(reply) for reply, _ in replies]
    for reply, name in zip(listed, names, strict=True):
        if not reply:
            raise ValueError(f"{name!r} is empty")
    texts = all(isinstance(each, str) for each in (*listed, prompt or ""))
    if texts and not own.get("input") and config.strings != "plain":
        said = [each if prompt is None else f"{_lead(prompt)}{each}" for each in listed]
        if all(turns := [transcript(each) for each in said]):
            listed, prompt = list(turns), None
    texts = all(isinstance(each, str) for each in listed) and isinstance(prompt, str | None)
    if texts and prompt is None and config.strings != "plain":
        raise ValueError(
            f"{names[0]!r} is text and there is no prompt: data.columns.prompt=COLUMN names it, and "
            "data.strings=plain takes for it what all replies begin with"
        )
    if texts and not chosen.chat:
        if own.get("system") and config.strings == "plain":
            raise ValueError("there is a system message, which plain text has no place for: data.strings=chat")
        yield from _plain(listed, [reward for _, reward in replies], prompt, chosen, config, place, reader)
        return
    if isinstance(prompt, str) and own.get("input"):
        prompt = f"{prompt}\n\n{own['input']}"
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _list(prompt)
    if own.get("system"):
        before = [{"role": "system", "content": own["system"]}, *before]
    whole = [_whole(before, reply, name) for reply, name in zip(listed, names, strict=True)]
    shared = _count_shared([[_key(message) for message in each] for each in whole])
    context = max(shared, len(before))
    for messages, (_, reward) in zip(whole, replies, strict=True):
        marked = [{**message, "train": False} if n < context else message for n, message in enumerate(messages)]
        yield replace(reader.example(place, marked, own.get("tools")), reward=reward)


def _whole(before: list[Any], reply: Any, name: str) -> list[Any]:
    """A conversation: a reply behind its prompt, which is not written twice."""
    after = [{"role": "assistant", "content": reply}] if isinstance(reply, str) else _list(reply)
    if not before or [_key(each) for each in after[: len(before)]] == [_key(each) for each in before]:
        return after
    begins = next((_key(each) for each in after if _key(each)[0] not in ("system", "developer")), ("", ""))
    if begins[0] != "user":
        return [*before, *after]
    asked = [_key(each) for each in before if _key(each)[0] == "user"]
    if not asked and _key(after[0])[0] == "user":  # a system message alone
        return [*before, *after]
    if begins not in asked:
        raise ValueError(f"{name!r} is a whole conversation, and does not begin with the prompt")
    return after


def _plain(
    replies: Sequence[str],
    rewards: Sequence[float],
    prompt: str | None,
    chosen: ColumnChoice,
    config: DataConfig,
    place: str,
    reader: MessageReader,
) -> Iterator[Example]:
    """Conversations of text as it is; without a prompt it is the words that all begin with."""
    if config.strings is None:
        columns = ", ".join(repr(name) for name in chosen.taken.values())
        raise ValueError(
            f"the columns {columns} have text: data.strings=chat takes it for a user's and an assistant's message, "
            "data.strings=plain as it is (as TRL does)"
        )
    if prompt is None:
        prompt = re.sub(r"\S*$", "", replies[0][: _count_shared(replies)]).rstrip(" ")
        replies = [reply[len(prompt) :] for reply in replies]
    for reply, reward in zip(replies, rewards, strict=True):
        parts = [{"role": "user", "content": prompt}] if prompt else []
        yield replace(
            reader.example(place, [*parts, {"role": "assistant", "content": reply}], plain=True), reward=reward
        )


def _count_shared(rows: Sequence[Sequence[Any]]) -> int:
    """The number of items that all rows begin with."""
    return sum(1 for _ in takewhile(lambda items: len(set(items)) == 1, zip(*rows, strict=False)))


def _lead(prompt: Any) -> str:
    """A prompt that is a transcript, which its reply follows; '' where it is none."""
    return prompt if transcript(prompt) else ""


def _list(value: Any) -> list[Any]:
    """Messages: a list of them, or one."""
    value = parse_json(value)
    if isinstance(value, Mapping):
        return [value]
    if not isinstance(value, list | tuple | None) or not all(isinstance(each, Mapping) for each in value or ()):
        raise ValueError(f"messages are expected, and there is {value!r}")
    return list(value or ())


def _key(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return what makes a message the same as another one: its role, and all that it says."""
    said = str(message.get("role", message.get("from")))
    role = SHAREGPT.get(said, said) if "role" not in message else ROLES.get(said, said)
    more = [message.get(name) for name in ("tool_calls", "tool_call_id", "function_call")]
    content = message.get("content", message.get("value"))
    return role, str([content, *more]) if any(more) else str(content)


def _is_scored(value: Any) -> bool:
    found = parse_json(value)
    return isinstance(found, list) and len(found) > 1 and all(isinstance(each, Mapping) for each in found)


def _field(reply: Any, names: Sequence[str]) -> Any:
    if not isinstance(reply, Mapping):
        raise ValueError(f"a reply is {type(reply).__name__}, no mapping")
    found = next((reply[name] for name in names if reply.get(name) is not None), None)
    if found is None:
        raise ValueError(f"a reply has none of {', '.join(names)} (its fields: {', '.join(reply)})")
    return found


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"a reply's score is {value!r}") from None


def _verdict(value: Any, name: str) -> float:
    found = VERDICTS.get(str(value).strip().lower().removesuffix(".0"))
    if found is None:
        raise ValueError(f"{name!r} is {value!r}: a label is true or false")
    return found


def column(row: Mapping[str, Any], name: str) -> Any:
    """A row's value at a column's name, `a.b` inside of a column; None where there is none."""
    found: Any = row
    for part in [name] if name in row else name.split("."):
        found = parse_json(found)
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
