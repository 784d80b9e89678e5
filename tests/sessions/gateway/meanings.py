"""Each protocol's treatment of what clients send beyond text and functions: one table, which the docs print.

A thing is refused only where training would learn something else without it. `table()` is in docs/agents.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Treatment(Enum):
    """A treatment of what clients send."""

    HONOURED = "honoured"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One thing that clients send.

    Attributes:
        thing: what it is.
        treatment: what is done with it.
        chat: its name in Chat Completions; "" where the protocol lacks it.
        responses: the same in Responses.
        messages: the same in Anthropic Messages.
        google: the same in Google's generateContent.
    """

    thing: str
    treatment: Treatment
    chat: str = ""
    responses: str = ""
    messages: str = ""
    google: str = ""


MEANINGS = (
    Meaning(
        "one call a turn", Treatment.HONOURED, "parallel_tool_calls", "parallel_tool_calls", "disable_parallel_tool_use"
    ),
    Meaning("a call demanded", Treatment.HONOURED, "tool_choice", "tool_choice", "tool_choice", "toolConfig"),
    Meaning(
        "a choice among some of the tools",
        Treatment.HONOURED,
        "allowed_tools",
        "allowed_tools",
        "",
        "allowedFunctionNames",
    ),
    Meaning("tools of one text", Treatment.HONOURED, "tools.custom", "tools.custom"),
    Meaning("shell, editor and memory of the client", Treatment.HONOURED, "", "", "tools.bash_20250124"),
    Meaning("the beginning of the reply", Treatment.HONOURED, "", "", "prefill"),
    Meaning("a schema, as vLLM has it", Treatment.HONOURED, "structured_outputs"),
    Meaning("the most probable tokens", Treatment.HONOURED, "top_logprobs", "top_logprobs", "", "logprobs"),
    Meaning("no reasoning", Treatment.HONOURED, "chat_template_kwargs"),
    Meaning("a reply that is continued", Treatment.HONOURED, "", "previous_response_id", "thread"),
    Meaning("a conversation that is continued", Treatment.HONOURED, "", "conversation"),
    Meaning("a reply that is made in the background", Treatment.HONOURED, "", "background"),
    Meaning("whether a reply can be fetched and continued", Treatment.HONOURED, "", "store"),
    Meaning(
        "effort", Treatment.IGNORED, "reasoning_effort", "reasoning.effort", "output_config.effort", "thinkingConfig"
    ),
    Meaning(
        "web search", Treatment.IGNORED, "web_search_options", "tools.web_search", "tools.web_search", "googleSearch"
    ),
    Meaning("a search among tools", Treatment.IGNORED, "", "tools.tool_search"),
    Meaning("tools in a name space", Treatment.IGNORED, "", "tools.namespace"),
    Meaning("dropping what does not fit", Treatment.IGNORED, "", "truncation"),
    Meaning("shortening what does not fit", Treatment.IGNORED, "", "context_management"),
    Meaning("calls of a provider's tools, at most", Treatment.IGNORED, "", "max_tool_calls"),
    Meaning("moderation", Treatment.IGNORED, "moderation", "moderation"),
    Meaning("unknown parameters", Treatment.IGNORED, "trace", "trace", "trace", "trace"),
    Meaning("unknown fields of messages", Treatment.IGNORED, "mood", "mood", "mood", "mood"),
    Meaning("parameters spelt wrong", Treatment.REFUSED, "temprature", "temprature", "temprature", "temprature"),
    Meaning("fields of messages spelt wrong", Treatment.REFUSED, "contents", "contents", "contents", "part"),
    Meaning("a provider's search of files", Treatment.REFUSED, "", "tools.file_search"),
    Meaning("pages that a provider fetches", Treatment.REFUSED, "", "", "tools.web_fetch_20250910"),
    Meaning(
        "code that a provider runs",
        Treatment.REFUSED,
        "",
        "tools.code_interpreter",
        "tools.code_execution_20250825",
        "codeExecution",
    ),
    Meaning("images that a provider makes", Treatment.REFUSED, "", "tools.image_generation"),
    Meaning("MCP servers that a provider asks", Treatment.REFUSED, "", "tools.mcp", "mcp_servers"),
    Meaning("a screen, mouse and keys", Treatment.REFUSED, "", "tools.computer", "tools.computer_20250124"),
    Meaning("shells with calls of their own form", Treatment.REFUSED, "", "tools.local_shell"),
    Meaning("patches with calls of their own form", Treatment.REFUSED, "", "tools.apply_patch"),
    Meaning("prompts that a provider keeps", Treatment.REFUSED, "", "prompt"),
)


def table() -> str:
    """Return the table in Markdown."""
    rows = ["| what | | Chat Completions | Responses | Messages | generateContent |", "|---|---|---|---|---|---|"]
    for one in MEANINGS:
        names = (f"`{name}`" if name else "" for name in (one.chat, one.responses, one.messages, one.google))
        rows.append(f"| {one.thing} | {one.treatment.value} | {' | '.join(names)} |")
    return "\n".join(rows)
