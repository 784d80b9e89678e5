"""smolagents: its tool-calling agent and its code agent."""

import os

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one number.
        b: the other.
    """
    return a + b


base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
model = OpenAIServerModel(model_id="m", api_base=base, api_key=key, max_tokens=2000)
kind = {"chat": ToolCallingAgent, "code": CodeAgent}[os.environ["SPEAK"]]
agent = kind(tools=[add], model=model, max_steps=4, verbosity_level=0)
print(agent.run("What is 2 + 3?"))
print(agent.run("And now?", reset=False))
