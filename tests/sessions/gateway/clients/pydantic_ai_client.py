"""pydantic-ai: an agent with a tool, run and streamed, over all three protocols."""

import asyncio
import os

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

models = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel, "messages": AnthropicModel}
agent = Agent(models[os.environ["SPEAK"]]("m"), instructions="Use add.", model_settings={"max_tokens": 2000})


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    result = await agent.run("What is 2 + 3?")
    print(result.output)
    async with agent.run_stream("And now?", message_history=result.all_messages()) as streamed:
        print(await streamed.get_output())


asyncio.run(main())
