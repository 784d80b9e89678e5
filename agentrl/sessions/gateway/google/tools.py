"""The tools of Google's API: function declarations and their schemas, and which of them may be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.sessions.gateway.google.fields import keep, rename_fields
from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.wire.chat import tools_of
from agentrl.sessions.gateway.wire.objects import object_at, text_at
from agentrl.sessions.renderers.base import ToolSchema

_SEARCHES = frozenset({"googleSearch", "googleSearchRetrieval", "enterpriseWebSearch"})
_DECLARED = frozenset({"name", "description", "parameters", "parametersJsonSchema"})
_NOT_SHOWN = frozenset({"behavior", "response", "responseJsonSchema"})
"""Further fields of a declaration; what a function returns is not part of the prompt."""


def read_tools(tools: Any, ignored: dict[str, str], strict: bool) -> list[ToolSchema]:
    """The tools on offer; ApiError where one is no function, and no web search."""
    if not isinstance(tools, list):
        raise ApiError(400, "tools: must be a list of names", "invalid_value", "tools")
    found = []
    for place, tool in enumerate(tools):
        for name, value in rename_fields(tool, f"tools[{place}]").items():
            if name in _SEARCHES:
                ignored[f"tools.{name}"] = f"tools.{name}"
            elif name != "functionDeclarations":
                raise refuse_parameter(f"tools[{place}].{name[:100]}", "only functionDeclarations")
            elif not isinstance(value, list):
                raise ApiError(400, f"tools[{place}].{name}: must be a list", "invalid_value", "tools")
            else:
                where = f"tools[{place}].functionDeclarations"
                found += [_function(one, f"{where}[{i}]", ignored, strict) for i, one in enumerate(value)]
    return tools_of(found)


def _function(declaration: Any, where: str, ignored: dict[str, str], strict: bool) -> ToolSchema:
    given = keep(rename_fields(declaration, where), _DECLARED, _NOT_SHOWN, frozenset(), where, {}, strict)
    function: dict[str, Any] = {"name": text_at(given, "name", where)}
    if "description" in given:
        function["description"] = text_at(given, "description", where)
    if "parametersJsonSchema" in given:
        function["parameters"] = dict(object_at(given["parametersJsonSchema"], f"{where}.parametersJsonSchema"))
    elif "parameters" in given:
        function["parameters"] = json_schema(given["parameters"], f"{where}.parameters")
    return {"type": "function", "function": function}


def json_schema(schema: Any, where: str) -> dict[str, Any]:
    """A JSON schema of one in Google's form: types in capitals, `nullable`, an order of properties.

    Raises:
        ApiError: it is no object.
    """
    given, found = rename_fields(schema, where), dict[str, Any]()
    for name, value in given.items():
        if name == "type":
            found[name] = [kind.lower() for kind in value] if isinstance(value, list) else str(value).lower()
        elif name in ("items", "additionalProperties") and isinstance(value, dict):
            found[name] = json_schema(value, f"{where}.{name}")
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            found[name] = [json_schema(one, f"{where}.{name}") for one in value]
        elif name in ("properties", "defs", "$defs") and isinstance(value, dict):
            found[name] = {key: json_schema(one, f"{where}.{name}.{key[:100]}") for key, one in value.items()}
        elif name not in ("propertyOrdering", "nullable", "example"):
            found[name] = int(value) if name.startswith(("min", "max")) and isinstance(value, str) else value
    if given.get("nullable") is True and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    return found


def _keep(value: Any, names: str, where: str, ignored: dict[str, str], strict: bool) -> dict[str, Any]:
    read, none = frozenset(names.split()), frozenset[str]()
    return keep(rename_fields(value, where), read, frozenset({"retrievalConfig"}), none, where, ignored, strict)


def choice(
    config: Any, tools: Sequence[ToolSchema], ignored: dict[str, str], strict: bool
) -> tuple[str | None, bool, frozenset[str] | None]:
    """Return what `toolConfig` forces, whether tools are on offer, and which may be called (see `TurnRequest`).

    Raises:
        ApiError: it is none that is known, or demands a call of a tool that there is not.
    """
    given = _keep(config, "functionCallingConfig", "toolConfig", ignored, strict)
    where = "toolConfig.functionCallingConfig"
    calling = _keep(given.get("functionCallingConfig", {}), "mode allowedFunctionNames", where, ignored, strict)
    mode, allowed = str(calling.get("mode", "AUTO")).upper(), calling.get("allowedFunctionNames", [])
    names = [tool["function"]["name"] for tool in tools]
    if not isinstance(allowed, list) or not all(isinstance(name, str) for name in allowed):
        raise ApiError(400, "allowedFunctionNames: must be a list", "invalid_value", "toolConfig")
    if mode == "NONE":
        return None, False, frozenset()
    if mode == "VALIDATED":
        ignored[f"{where}.mode"] = f"{where}.mode"
    some = frozenset(allowed) if allowed and set(allowed) != set(names) else None
    if mode in ("AUTO", "MODE_UNSPECIFIED", "VALIDATED"):
        return None, True, some
    if mode != "ANY":
        raise refuse_parameter(f"{where}.mode", "only AUTO, ANY, NONE and VALIDATED")
    if not names or (some is not None and not some & set(names)):
        raise ApiError(400, "toolConfig demands a call, but there are no tools", "invalid_value", "toolConfig")
    return "", True, some
