"""autogen: a planner and a worker in a round robin, each with a model of its own."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}
INFO["family"] = "unknown"


async def main() -> None:
    agents = []
    for name, text in (("planner", "Plan."), ("worker", "Answer.")):
        client = OpenAIChatCompletionClient(model=name, model_info=INFO, max_tokens=2000)
        agents.append(AssistantAgent(name, client, system_message=text))
    print((await RoundRobinGroupChat(agents, max_turns=4).run(task="What is 2 + 3?")).messages[-1].content)


asyncio.run(main())
