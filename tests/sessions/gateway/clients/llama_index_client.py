"""llama-index: a function-calling agent with a memory."""

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    kinds = {"is_chat_model": True, "is_function_calling_model": True}
    model = OpenAILike(model="m", api_base=base, api_key=key, max_tokens=2000, **kinds)
    agent = FunctionAgent(tools=[add], llm=model, system_prompt="Use add.")
    memory = ChatMemoryBuffer.from_defaults(token_limit=8000, tokenizer_fn=str.split)
    print(await agent.run("What is 2 + 3?", memory=memory))
    print(await agent.run("And now?", memory=memory))


asyncio.run(main())
