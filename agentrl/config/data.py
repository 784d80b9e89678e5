"""Sessions that are read instead of generated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from agentrl.config.sections import Section


def _as_tuple(value: Any) -> Any:
    return tuple(value.split(",")) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class DataConfig(Section):
    """Conversations of a file, or sessions of a run, that a run trains on; see docs/offline.md."""

    name: str
    """A file (JSONL, JSON, CSV, Parquet), a folder of such files, hf://OWNER/NAME, or a run's folder."""
    columns: dict[str, str] = Field({})
    """The column that is taken for each part: data.columns.prompt=question; `a.b` is inside a column. What rows can
    have: messages, tools, prompt, completion, text; chosen, rejected, margin, scored, score and label where rows are
    judged; completions and labels where steps are."""
    strings: Literal["chat", "plain"] | None = None
    """The meaning of a prompt and a completion that are text: messages of a user and an assistant (chat), or text as it
    is (plain). Their columns' names decide where they are known for one of both."""
    train_on: Names = ("assistant",)
    """The messages that the loss is over: those of these roles, `last` (a conversation's last message), or `all`."""
    max_tokens: PositiveInt | None = None
    """The longest path of tokens; None is the model's context."""
    overlong: Literal["cut", "skip", "refuse"] = "cut"
    """The treatment of longer conversations: their end is cut off, they are left out, or the run does not begin."""
    held_out: str | None = None
    """Another file with what the loss is measured on; None takes a tenth of the rows, by the hash of their content,
    where the data has no files for evaluation of its own."""
    config: str = ""
    """One of a data set's configurations, a folder within it."""
    where: dict[str, Any] | str | None = None
    """The rows that are taken, by column: a value, several, or bounds; or path/to/file.py:FUNCTION of the row."""
    min_reward: float | None = None
    """Of a run's sessions, the lowest reward of those that are taken; so is `max_reward` the highest."""
    max_reward: float | None = None
    """See `min_reward`."""
    status: Names = ("completed", "truncated")
    """The status of a run's sessions that are taken."""
    agent: str | None = None
    """The agent whose turns of a run's sessions are trained; None: every one."""
