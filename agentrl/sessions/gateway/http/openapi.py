"""The API's description (OpenAPI): what each address takes and answers, briefly.

The protocols' full grammars are OpenAI's and Anthropic's own; this is what a client needs to know of them,
and every status that an address can answer with.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_TEXT = {"type": "string"}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": _TEXT},
    },
}
_COMMON = {
    "model": _TEXT,
    "stream": {"type": "boolean"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "tools": {"type": "array", "items": {"type": "object"}},
    "tool_choice": {},
}
_LENGTH = {"type": "integer", "minimum": 1, "maximum": 64}
_REQUESTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "chat/completions": (
        ["model", "messages"],
        {
            **_COMMON,
            "messages": _MESSAGES,
            "max_completion_tokens": _LENGTH,
            "n": {"type": "integer", "minimum": 1, "maximum": 4},
            "stop": {},
            "seed": {"type": "integer"},
            "logprobs": {"type": "boolean"},
            "response_format": {"type": "object"},
            "parallel_tool_calls": {"type": "boolean"},
        },
    ),
    "responses": (
        ["model", "input"],
        {
            **_COMMON,
            "input": {"oneOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]},
            "instructions": _TEXT,
            "max_output_tokens": _LENGTH,
            "previous_response_id": _TEXT,
        },
    ),
    "completions": (
        ["model", "prompt"],
        {
            **{name: kind for name, kind in _COMMON.items() if not name.startswith("tool")},
            "prompt": {"oneOf": [_TEXT, {"type": "array", "items": {"type": "integer"}}]},
            "max_tokens": _LENGTH,
            "n": {"type": "integer", "minimum": 1, "maximum": 4},
            "stop": {},
        },
    ),
    "messages": (
        ["model", "messages", "max_tokens"],
        {
            **_COMMON,
            "messages": _MESSAGES,
            "max_tokens": _LENGTH,
            "system": {},
            "stop_sequences": {"type": "array", "items": _TEXT},
            "thinking": {"type": "object"},
        },
    ),
}
_REQUESTS["embeddings"] = (["model", "input"], {"model": _TEXT, "input": {}})
_REQUESTS["generateContent"] = (
    ["contents"],
    {
        "contents": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"role": {"enum": ["user", "model"]}, "parts": {"type": "array"}},
            },
        },
        "generationConfig": {"type": "object"},
        "systemInstruction": {"type": "object"},
        "toolConfig": {"type": "object"},
        "tools": {"type": "array", "items": {"type": "object"}},
    },
)
_DESCRIPTIONS = {
    200: "Done",
    201: "Opened",
    400: "The request is wrong",
    401: "The key is not this session's",
    404: "Nothing of that name",
    408: "The body did not arrive in time",
    410: "The session is closed or sealed",
    413: "The body is too large",
    415: "The body is compressed in a way that is not read",
    429: "Too much at once; see Retry-After",
    500: "Our fault",
    503: "The engine or the store failed; trying again makes sense",
}


def answers(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The statuses that an address answers with."""
    return {code: {"description": _DESCRIPTIONS[code]} for code in codes}


def body(kind: type[BaseModel], *codes: int) -> dict[str, Any]:
    """Keyword arguments of a route that takes this model."""
    return {"openapi_extra": _body(kind.model_json_schema()), "responses": answers(*codes)}


def json_object(*codes: int) -> dict[str, Any]:
    """Keyword arguments of a route that takes any JSON object."""
    return {"openapi_extra": _body({"type": "object"}), "responses": answers(*codes)}


def protocol_request(path: str, *codes: int) -> dict[str, Any]:
    """Keyword arguments of a protocol's route."""
    required, properties = _REQUESTS[path]
    schema = {"type": "object", "required": required, "properties": properties}
    return {"openapi_extra": _body(schema), "responses": answers(*codes)}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    security = [{"session": list[str]()}]
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}, "security": security}
