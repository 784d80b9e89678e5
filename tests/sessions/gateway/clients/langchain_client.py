"""langchain-openai: a chat model with a bound tool, invoked and streamed, over Chat Completions and over Responses."""

import os

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ways = {"chat": {"seed": 7}, "responses": {"use_responses_api": True}, "ids": {"use_previous_response_id": True}}
speak = os.environ.get("SPEAK", "chat")
settings = {"max_tokens": 2000, "temperature": 0, "top_p": 0.9, "max_retries": 0}
model = ChatOpenAI(model="m", **settings, **ways[speak]).bind_tools([add])
messages = [SystemMessage("Use add."), HumanMessage("What is 2 + 3?")]
for _ in range(4):
    message = model.invoke(messages)
    messages.append(message)
    if not message.tool_calls:
        break
    messages += [ToolMessage("5", tool_call_id=call["id"]) for call in message.tool_calls]
messages.append(HumanMessage("And now?"))
whole = None
for chunk in model.stream(messages):
    whole = chunk if whole is None else whole + chunk
print(whole.content)
