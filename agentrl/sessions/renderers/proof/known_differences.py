"""Intended differences of a family's renderer from its template, which `agentrl check` distinguishes from faults.

Each difference says in which trials it shows, why it is intended, and how to narrow the trial so that it can not show:
there, template and renderer must still agree token for token (docs/decisions/014-deliberate-differences.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentrl.sessions.renderers.families.table import Expresses

CHAT, TOOLS, PARALLEL, REASONING = KINDS = ("chat", "tools", "parallel calls", "reasoning")


@dataclass(frozen=True, slots=True)
class Difference:
    """An intended difference.

    Attributes:
        kinds: the trials in which it shows.
        because: what differs and why.
        everywhere: nothing of such a trial can be compared.
        rounds: user messages of a narrowed trial.
        reasoning: how often assistants reason in it; None leaves it as it is.
        tools: whether tools are called in it; None leaves it as it is. (A single question shows reasoning behind the
            prompt only where a tool's result follows.)
        system: whether its conversations begin with a system message; None: some do.
        declared: whether the tools that are called are on offer in it.
    """

    kinds: tuple[str, ...]
    because: str
    everywhere: bool = False
    rounds: int = 3
    reasoning: float | None = None
    tools: bool | None = None
    system: bool | None = None
    declared: bool = True


EARLIER = Difference(
    (REASONING,),
    "the template leaves out the reasoning of earlier turns, here it stays (model.reasoning=strip does as it does)",
    rounds=1,
    tools=True,
)
OPENED = Difference(
    KINDS,
    "the prompt opens the reasoning, so a turn without any leaves a trace, which the template drops later on",
    rounds=1,
    reasoning=1.0,
    tools=True,
)
_NO_THOUGHTS = Difference(
    (CHAT, TOOLS, PARALLEL),
    "the prompt writes an empty thought, which the template leaves out of earlier turns; here it stays",
    rounds=1,
)
_BLANK_LINE = Difference(
    (TOOLS, PARALLEL),
    "without a system message a blank line comes before the tools, as DeepSeek's encoder has it and the template not",
    system=True,
)
_PROMPTED = "revisions of the template differ in the default system prompt"
_ASKED = "after a tool's result the template's prompt opens the reasoning, here the model does"
_MOVED = "the template moves tools and system prompt to the last user message, here they stay with the first"
_HARMONY = (
    "OpenAI's own encoder is followed, not the template, which quotes results, adds blank lines and ends earlier turns "
    "with another token"
)
_DEFAULT = "the template writes a system prompt of its own (with the day's date) where none is given"
_MOVED_TOOLS = "the template moves the tools to the last user message, here they stay with the first"
_REVISION = "revisions of the template list the tools in another wording than the newest, which is written here"

DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "generic": (EARLIER, OPENED),
    "qwen3": (EARLIER,),
    "gemma-4": (
        Difference((TOOLS, PARALLEL), _ASKED, tools=False),
        Difference((REASONING,), f"{EARLIER.because}; {_ASKED}", rounds=1, tools=False),
    ),
    "glm-4.5": (EARLIER,),
    "glm-4.6": (EARLIER,),
    **dict.fromkeys(("qwen3.5", "qwen3.6", "glm-5", "kimi-k2.5", "deepseek-r1"), (OPENED, EARLIER)),
    "qwen3.5-instruct": (_NO_THOUGHTS,),
    "minimax-m2": tuple(replace(one, because=f"{one.because}; {_PROMPTED}", system=True) for one in (OPENED, EARLIER)),
    "deepseek-v3.1-thinking": (OPENED, EARLIER),
    "mistral": (
        Difference((CHAT,), _MOVED, system=False),
        Difference((TOOLS, PARALLEL), _MOVED, rounds=1, system=False),
    ),
    **dict.fromkeys(
        ("mistral-v7", "mistral-v11", "mistral-v13"),
        (
            Difference((CHAT, REASONING), _DEFAULT, system=True),
            Difference((TOOLS, PARALLEL), _DEFAULT, system=True),
            Difference((TOOLS, PARALLEL), f"{_DEFAULT}; {_MOVED_TOOLS}", rounds=1, system=True),
        ),
    ),
    "deepseek-v3": (
        Difference(
            (TOOLS, PARALLEL),
            "the template leaves a single call unclosed and closes several twice, here a section is closed once",
            everywhere=True,
        ),
    ),
    "deepseek-v3.1": (
        Difference(
            (TOOLS, PARALLEL), "the template lists no tools, here they stand as on the model card", declared=False
        ),
    ),
    "deepseek-v4": (_BLANK_LINE,),
    "deepseek-v4-thinking": (_BLANK_LINE,),
    "kimi-k2": (Difference((TOOLS, PARALLEL), _REVISION, declared=False),),
    "qwen3-coder": (Difference((TOOLS, PARALLEL), _REVISION, declared=False),),
    "gpt-oss": (
        Difference((CHAT, REASONING), _HARMONY, rounds=1, reasoning=0.0, tools=False, system=False),
        Difference((TOOLS, PARALLEL), _HARMONY, everywhere=True),
    ),
}
"""Known differences by renderer; the first whose narrowed trial agrees explains one."""


def missing(kind: str, template: Expresses) -> Difference | None:
    """Return what explains a difference where the template has no place for this kind of conversation."""
    lacks = {
        TOOLS: None if template.tools else "tool calls",
        PARALLEL: None if template.tools and template.parallel else "several tool calls",
        REASONING: None if template.reasoning else "reasoning",
    }.get(kind)
    if lacks is None:
        return None
    return Difference((kind,), f"the template has no place for {lacks}, the renderer has", everywhere=True)
