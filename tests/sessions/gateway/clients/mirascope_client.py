"""mirascope: calls with a tool in a loop, then a second question; over Responses (its default) and Chat Completions."""

import os

from mirascope import llm


@llm.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


name = {"chat": "openai/m:completions", "responses": "openai/m:responses"}[os.environ["SPEAK"]]
model = llm.Model(name, temperature=0, top_p=0.9, max_tokens=2000)
response = model.call([llm.messages.system("Use add."), llm.messages.user("What is 2 + 3?")], tools=[add])
while response.tool_calls:
    response = response.resume(response.execute_tools())
print(response.resume("And now?").text())
