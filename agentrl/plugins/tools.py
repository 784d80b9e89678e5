"""A source of tools as a plug-in: tools from elsewhere, added to any environment.

It is a subclass of `ToolSource` with `start`, which lists its tools; a function, a `Tool` or a list of them is one too.
Its attribute `settings` is the class of the section `tools.NAME.*`, a subclass of `ToolConfig`. What an environment's
own tools need is `agentrl.tool` alone.

- Named by `tools.NAME=file.py:CLASS`, or an entry point in the group `agentrl.tools`.
- See docs/tools.md.
"""

from agentrl.config import ToolConfig
from agentrl.errors import InfraError, ToolError
from agentrl.tools.sources import SOURCES, OpenTools, ToolSource
from agentrl.tools.tool import Tool, tool

__all__ = ["SOURCES", "InfraError", "OpenTools", "Tool", "ToolConfig", "ToolError", "ToolSource", "tool"]
