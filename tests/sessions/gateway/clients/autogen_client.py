"""autogen: an assistant agent with a tool that reflects on its result, over OpenAI's and Anthropic's clients."""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.anthropic import AnthropicChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    info = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}
    info["family"] = "unknown"
    if os.environ["SPEAK"] == "chat":
        client = OpenAIChatCompletionClient(model="m", model_info=info, max_tokens=2000)
    else:
        base = os.environ["ANTHROPIC_BASE_URL"]
        client = AnthropicChatCompletionClient(model="m", model_info=info, max_tokens=2000, base_url=base)
    agent = AssistantAgent(
        "adder", client, tools=[add], reflect_on_tool_use=True, system_message="Use add.", max_tool_iterations=3
    )
    print((await agent.run(task="What is 2 + 3?")).messages[-1].content)
    print((await agent.run(task="And now?")).messages[-1].content)


asyncio.run(main())
