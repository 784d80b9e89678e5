"""The operations of an HTTP service as tools, from its OpenAPI document (3.0 or 3.1, JSON or YAML).

Each operation is a tool of its `operationId`; its parameters and the fields of its JSON body are the tool's arguments.
Requests go to the service's address alone: arguments are quoted where they become part of a path, and redirects are not
followed. An answer of 4xx or 5xx is an error message to the model; 502, 503, 504 and a connection that fails are the
infrastructure's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urljoin

import httpx
import yaml
from pydantic import Field

from agentrl.config import ToolConfig
from agentrl.config.secrets import Secrets
from agentrl.errors import ConfigError, InfraError, ToolArguments, ToolError
from agentrl.tools.schema import show_value
from agentrl.tools.sources import ToolSource
from agentrl.tools.tool import Tool

METHODS = ("get", "put", "post", "delete", "patch")
UNAVAILABLE = (502, 503, 504)
MAX_DOCUMENT = 20 << 20
"""The most bytes of a document."""
MAX_ANSWER = 4 << 20
"""Bytes that are read of an answer."""
MAX_DEPTH = 20
"""Levels of references within a schema; deeper ones (a type that has itself as a part) allow anything."""
MOST_VALUES = 20_000
"""Of a schema with what it refers to."""
BODY = "body"
"""The argument that is the whole body, where that is no object or shares a name with a parameter."""
CONNECTIONS = 100


class OpenApiConfig(ToolConfig):
    """Settings of `tools.NAME=openapi`."""

    document: str
    """The document: a file, or an http(s) URL."""
    url: str | None = None
    """The service's address; None is the first one of the document's `servers`."""
    headers: Secrets = Field({})
    """Headers of each request, such as Authorization."""


@dataclass(frozen=True)
class Operation:
    """One operation: where its arguments go.

    `places` is `path`, `query`, `header`, `cookie` or `body` by argument; `names` an argument's name there.
    """

    method: str
    path: str
    places: Mapping[str, str]
    required: frozenset[str]
    whole_body: bool


class OpenApi(ToolSource):
    """The operations of a service."""

    settings: ClassVar[type[ToolConfig]] = OpenApiConfig
    config: OpenApiConfig
    _client: httpx.AsyncClient | None = None

    async def start(self) -> Sequence[Tool]:
        """Read the document.

        Raises:
            ConfigError: it can't be read, is no OpenAPI document of version 3, or says no address.
        """
        document = await _read(self.config.document, self.config.headers)
        base = self._base(document)
        client = self._client = httpx.AsyncClient(
            base_url=base, headers=self.config.headers, limits=httpx.Limits(max_connections=CONNECTIONS), timeout=None
        )
        return [self._tool(client, *operation) for operation in operations(document)]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _base(self, document: Mapping[str, Any]) -> str:
        servers = document.get("servers") or [{}]
        listed = str(servers[0].get("url", "")) if isinstance(servers[0], Mapping) else ""
        base = self.config.url or (urljoin(self.config.document, listed) if "://" in self.config.document else listed)
        if not base.startswith(("http://", "https://")):
            raise ConfigError(f"{self.config.document}: its servers name no http(s) address; say it by `url`")
        return base

    def _tool(
        self, client: httpx.AsyncClient, name: str, description: str, parameters: dict[str, Any], operation: Operation
    ) -> Tool:
        async def invoke(arguments: dict[str, Any], _: Any) -> str:
            return await self._request(client, operation, arguments)

        def check(arguments: dict[str, Any]) -> dict[str, Any]:
            if missing := operation.required - arguments.keys():
                raise ToolArguments(f"{', '.join(sorted(missing))}: missing (allowed: {', '.join(operation.places)})")
            if unknown := arguments.keys() - operation.places.keys():
                raise ToolArguments(f"{', '.join(sorted(unknown))}: not known (allowed: {', '.join(operation.places)})")
            return arguments

        of_model = (ConnectionError, TimeoutError)
        return Tool(name, description, parameters, invoke, check, model_errors=of_model)

    async def _request(self, client: httpx.AsyncClient, operation: Operation, arguments: Mapping[str, Any]) -> str:
        parts: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}, "cookie": {}, "body": {}}
        for name, value in arguments.items():
            parts[operation.places[name]][name] = value
        path = re.sub(r"\{([^{}]+)\}", lambda found: _segment(parts["path"].get(found[1], "")), operation.path)
        body = parts["body"].get(BODY) if operation.whole_body else parts["body"] or None
        try:
            async with client.stream(
                operation.method,
                path.lstrip("/"),
                params={name: _as_text(value) for name, value in parts["query"].items()},
                headers={name: str(_as_text(value)) for name, value in parts["header"].items()},
                cookies={name: str(_as_text(value)) for name, value in parts["cookie"].items()} or None,
                json=body,
            ) as response:
                text = await _bounded_text(response)
        except httpx.InvalidURL as error:
            raise ToolError(f"the request is invalid: {error}") from None
        except httpx.HTTPError as error:
            raise InfraError(f"{operation.method} {path}: {type(error).__name__}: {error}") from error
        if response.status_code in UNAVAILABLE:
            raise InfraError(f"{operation.method} {path} answered {response.status_code}: {text[:200]}")
        if response.is_error:
            raise ToolError(f"the service answered {response.status_code}: {text}")
        return text


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], Operation]]:
    """Each operation's name, description, arguments as JSON schema, and how it is requested."""
    for path, item in document["paths"].items():
        for method in METHODS:
            if isinstance(item, Mapping) and isinstance(item.get(method), Mapping):
                yield _operation(document, str(path), method, item)


def _operation(
    document: Mapping[str, Any], path: str, method: str, item: Mapping[str, Any]
) -> tuple[str, str, dict[str, Any], Operation]:
    about = item[method]
    name = str(about.get("operationId") or f"{method}_{path.strip('/')}")
    described = "\n".join(str(about[key]) for key in ("summary", "description") if about.get(key)) or f"{method} {path}"
    properties: dict[str, Any] = {}
    places: dict[str, str] = {}
    required: set[str] = set()
    listed = [_resolve(document, each) for each in [*item.get("parameters", []), *about.get("parameters", [])]]
    for parameter in {(each["name"], each["in"]): each for each in listed}.values():
        schema = _inline(document, parameter.get("schema", {}))
        words = {"description": parameter["description"]} if parameter.get("description") else {}
        properties[parameter["name"]], places[parameter["name"]] = {**schema, **words}, parameter["in"]
        if parameter.get("required") or parameter["in"] == "path":
            required.add(parameter["name"])
    whole = _add_body(document, about, properties, places, required)
    parameters = {"type": "object", "properties": properties, "required": sorted(required)}
    return name, described, parameters, Operation(method.upper(), path, places, frozenset(required), whole)


def _add_body(
    document: Mapping[str, Any],
    about: Mapping[str, Any],
    properties: dict[str, Any],
    places: dict[str, str],
    required: set[str],
) -> bool:
    """Add a JSON body's fields to the arguments; True where the body is one argument."""
    body = _resolve(document, about.get("requestBody") or {})
    content = next((each for kind, each in body.get("content", {}).items() if "json" in kind), None)
    if content is None:
        return False
    schema = _inline(document, content.get("schema", {}))
    fields = schema.get("properties")
    if schema.get("type") == "object" and fields and not fields.keys() & properties.keys():
        properties |= fields
        places |= dict.fromkeys(fields, "body")
        required |= set(schema.get("required", ())) if body.get("required") else set()
        return False
    properties[BODY], places[BODY] = schema, "body"
    required |= {BODY} if body.get("required") else set()
    return True


def _resolve(document: Mapping[str, Any], value: Any) -> Any:
    """The value that a reference within the document names."""
    for _ in range(MAX_DEPTH):
        if not (isinstance(value, Mapping) and isinstance(value.get("$ref"), str)):
            return value
        reference: str = value["$ref"]
        value = document
        for part in reference.removeprefix("#/").split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if not reference.startswith("#/") or not isinstance(value, Mapping) or key not in value:
                raise ConfigError(f"the OpenAPI document refers to {reference!r}, which it does not hold")
            value = value[key]
    return {}


def _inline(document: Mapping[str, Any], schema: Any) -> Any:
    """A schema with what it refers to in its place."""
    left = MOST_VALUES

    def inlined(schema: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ConfigError(f"a schema of the OpenAPI document refers to more than {MOST_VALUES} values")
        if isinstance(schema, list):
            return [inlined(item, depth + 1) for item in schema]
        if not isinstance(schema, Mapping):
            return schema
        if depth > MAX_DEPTH:
            return {}
        if "$ref" in schema:
            return inlined(_resolve(document, schema), depth + 1)
        return {key: inlined(value, depth + 1) for key, value in schema.items() if key != "title"}

    return inlined(schema, 0)


def _segment(value: Any) -> str:
    """An argument as one segment of a path."""
    text = str(_as_text(value))
    if text in ("", ".", ".."):
        raise ToolArguments(f"a part of the path = {show_value(text)}: allowed: text that is not empty, '.' or '..'")
    return quote(text, safe="")


def _as_text(value: Any) -> Any:
    """A parameter's value as HTTP has it; lists repeat the parameter."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return value if isinstance(value, str | int | float) else str(value)


async def _bounded_text(response: httpx.Response) -> str:
    found = bytearray()
    async for chunk in response.aiter_bytes():
        found += chunk
        if len(found) > MAX_ANSWER:
            break
    return bytes(found[:MAX_ANSWER]).decode(response.encoding or "utf-8", "replace")


def _text_of(file: str) -> str:
    return Path(file).expanduser().read_text()


async def _read(where: str, headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        if where.startswith(("http://", "https://")):
            async with httpx.AsyncClient(headers=dict(headers)) as client:
                answer = await client.get(where, follow_redirects=True)
            answer.raise_for_status()
            text = answer.text
        else:
            text = await asyncio.to_thread(_text_of, where)
        document: Any = yaml.safe_load(text) if len(text) <= MAX_DOCUMENT else None
    except (OSError, UnicodeDecodeError, httpx.HTTPError, httpx.InvalidURL, yaml.YAMLError) as error:
        raise ConfigError(f"the OpenAPI document {where!r} can't be read: {error}") from error
    about = document if isinstance(document, Mapping) else {}
    if not str(about.get("openapi", "")).startswith("3.") or not isinstance(about.get("paths"), Mapping):
        raise ConfigError(
            f"{where!r} is no OpenAPI document of version 3: allowed: one with `openapi: 3.…` and `paths`"
        )
    return dict(about)
