"""LangChain's tools (`langchain_core.tools.BaseTool`): those of its packages, or functions that its `@tool` marks."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from agentrl.errors import ToolArguments, ToolError, require_extra
from agentrl.tools.tool import Tool


def as_tool(tool: Any) -> Tool:
    """A LangChain tool as one of ours; its own schema checks the arguments.

    Raises:
        MissingExtra: langchain-core is not installed.
    """
    with require_extra("langchain", "langchain-core"):
        from langchain_core.tools import ToolException
        from langchain_core.utils.function_calling import convert_to_openai_tool
    schema = convert_to_openai_tool(tool)["function"]

    async def invoke(arguments: dict[str, Any], _: Any) -> Any:
        try:
            return await tool.ainvoke(arguments)
        except ValidationError as error:
            raise ToolArguments(_words(error)) from None
        except ToolException as error:
            raise ToolError(str(error)) from error

    return Tool(schema["name"], schema.get("description", ""), schema.get("parameters") or {}, invoke)


def _words(error: ValidationError) -> str:
    problems = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False))
    return "; ".join(problems)
