"""haystack-ai: its agent with a tool, then a second question; over Chat Completions and over Responses."""

import os
from typing import Annotated

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool


@tool
def add(a: Annotated[int, "one"], b: Annotated[int, "another"]) -> str:
    """Add two numbers."""
    return str(a + b)


kind, own = {
    "chat": (OpenAIChatGenerator, {"max_completion_tokens": 2000, "seed": 7}),
    "responses": (OpenAIResponsesChatGenerator, {"max_output_tokens": 2000}),
}[os.environ["SPEAK"]]
model = kind(
    model="m", api_base_url=os.environ["OPENAI_BASE_URL"], generation_kwargs={"temperature": 0, "top_p": 0.9, **own}
)
agent = Agent(chat_generator=model, tools=[add], system_prompt="Use add.")
first = agent.run(messages=[ChatMessage.from_user("What is 2 + 3?")])
# what it returns begins with the system prompt, which it puts in front again
second = agent.run(messages=[*first["messages"][1:], ChatMessage.from_user("And now?")])
print(second["messages"][-1].text)
