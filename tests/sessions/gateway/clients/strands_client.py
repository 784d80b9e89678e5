"""strands-agents: an agent with a tool, then a second question; streamed, as it always is."""

import os

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


given = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
params = {"max_tokens": 2000, "temperature": 0, "top_p": 0.9, "seed": 7}
agent = Agent(model=OpenAIModel(client_args=given, model_id="m", params=params), tools=[add], system_prompt="Use add.")
print(agent("What is 2 + 3?"))
print(agent("And now?"))
