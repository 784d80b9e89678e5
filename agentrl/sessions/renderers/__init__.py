"""Renderers and parsers, one for each conversation format."""

from agentrl.sessions.renderers.base import Delta, Parsed, Parser, Renderer, Span, SpanKind, ToolSchema, parse
from agentrl.sessions.renderers.registry import RENDERERS, get_renderer

__all__ = [
    "RENDERERS",
    "Delta",
    "Parsed",
    "Parser",
    "Renderer",
    "Span",
    "SpanKind",
    "ToolSchema",
    "get_renderer",
    "parse",
]
