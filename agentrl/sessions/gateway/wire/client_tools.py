"""Anthropic's tools that a client runs itself: shell, text editor and memory, offered to the model as functions.

A request names them by a type with a date alone; what they take is published
(https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/bash-tool, text-editor-tool, memory-tool).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _schema(fields: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(fields), "required": list(required)}


_LINES = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "For view, of a file: the first and the last line to show, from 1; -1 is the file's end.",
}
_BASH = _schema(
    {
        "command": _text("The command to run. Required, unless the shell is restarted."),
        "restart": {"type": "boolean", "description": "Whether to restart the shell."},
    }
)


def _editor(*more: str, inserted: str) -> dict[str, Any]:
    commands = ["view", "create", "str_replace", "insert", *more]
    new = {"new_str": _text("For str_replace, and insert: the new text.")}
    if inserted != "new_str":
        new = {"new_str": _text("For str_replace: the new text."), inserted: _text("For insert: the new text.")}
    return _schema(
        {
            "command": {"type": "string", "enum": commands, "description": "What to do."},
            "path": _text("The path of the file or folder."),
            "view_range": _LINES,
            "file_text": _text("For create: the file's content."),
            "old_str": _text("For str_replace: the text to replace, which the file has exactly once."),
            "insert_line": {"type": "integer", "description": "For insert: the line behind which; 0 is the beginning."},
            **new,
        },
        "command",
        "path",
    )


_MEMORY = _schema(
    {
        "command": {
            "type": "string",
            "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
            "description": "What to do.",
        },
        "path": _text("The path of the file or folder, in /memories; for all commands but rename."),
        "view_range": _LINES,
        "file_text": _text("For create: the file's content."),
        "old_str": _text("For str_replace: the text to replace."),
        "new_str": _text("For str_replace: the text to put there."),
        "insert_line": {"type": "integer", "description": "For insert: the line at which to insert."},
        "insert_text": _text("For insert: the text."),
        "old_path": _text("For rename: the path as it is."),
        "new_path": _text("For rename: the path to be."),
    },
    "command",
)
_SHELL = "Run a command in a shell that stays open between calls."
_EDIT = "View, create and edit text files."
_OLD_EDITOR = _editor("undo_edit", inserted="new_str")
_KEEP = "Keep notes in files that last beyond this conversation; view /memories before anything else."

CLIENT_TOOLS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    **{f"bash_{date}": ("bash", _SHELL, _BASH) for date in ("20241022", "20250124")},
    **{f"text_editor_{date}": ("str_replace_editor", _EDIT, _OLD_EDITOR) for date in ("20241022", "20250124")},
    **{
        f"text_editor_{date}": ("str_replace_based_edit_tool", _EDIT, _editor(inserted="insert_text"))
        for date in ("20250429", "20250728")
    },
    "memory_20250818": ("memory", _KEEP, _MEMORY),
}
"""Clients' tools by type: the name that the client expects in calls, a description, and what the tool takes."""


def as_function(tool: Any) -> Any:
    """A tool as the client declared it; one of `CLIENT_TOOLS` with its schema, as if the client had written that."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str) or kind not in CLIENT_TOOLS:
        return tool
    name, description, schema = CLIENT_TOOLS[kind]
    kept = {field: tool[field] for field in ("defer_loading", "cache_control") if field in tool}
    return {"name": name, "description": description, "input_schema": schema, **kept}
