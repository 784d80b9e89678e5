"""openai-agents: a planner hands a question off to a worker, each with a model of its own."""

import asyncio

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


async def main() -> None:
    client = AsyncOpenAI()
    settings = ModelSettings(max_tokens=2000)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model="worker", openai_client=client)
        worker = Agent(name="worker", instructions="Answer.", model=model, model_settings=settings)
        model = kind(model="planner", openai_client=client)
        planner = Agent(
            name="planner", instructions="Hand it off.", model=model, handoffs=[worker], model_settings=settings
        )
        print((await Runner.run(planner, "What is 2 + 3?", max_turns=4)).final_output)


asyncio.run(main())
