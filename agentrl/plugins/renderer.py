"""A conversation format as a plug-in: messages as tokens, and a model's tokens as messages.

It is an object with the protocol `Renderer`, made by a function of a tokenizer; a `RendererFamily` where
`model.renderer=auto` is to choose it.

- Named by `model.renderer=file.py:NAME`, `RENDERERS.register`, or an entry point in the group `agentrl.renderers`.
- Proven by `check_renderer`, which `agentrl check renderer=MODEL` runs.
- See docs/renderers.md.
"""

from agentrl.errors import RenderError
from agentrl.sessions.renderers import (
    RENDERERS,
    Delta,
    Parsed,
    Parser,
    Renderer,
    Span,
    SpanKind,
    ToolSchema,
    get_renderer,
    parse,
)
from agentrl.sessions.renderers.families.table import Expresses, RendererFamily
from agentrl.sessions.renderers.proof.check import check_renderer
from agentrl.types import FunctionCall, Message, Node, Text, Tokenizer, ToolCall

__all__ = [
    "RENDERERS",
    "Delta",
    "Expresses",
    "RendererFamily",
    "FunctionCall",
    "Message",
    "Node",
    "Parsed",
    "Parser",
    "RenderError",
    "Renderer",
    "Span",
    "SpanKind",
    "Text",
    "Tokenizer",
    "ToolCall",
    "ToolSchema",
    "check_renderer",
    "get_renderer",
    "parse",
]
