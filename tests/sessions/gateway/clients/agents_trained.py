"""openai-agents: a planner has to hand a question off to a worker, each with a model of its own."""

import asyncio

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, handoff, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)


class Plan(BaseModel):
    """What the worker is told."""

    even: bool


async def main() -> None:
    client = AsyncOpenAI()
    told: list[bool] = []

    async def tell(_: object, plan: Plan) -> None:
        told.append(plan.even)

    def model(name: str) -> OpenAIChatCompletionsModel:
        return OpenAIChatCompletionsModel(model=name, openai_client=client)

    worker = Agent(name="worker", instructions="Answer.", model=model("worker"))
    to_worker = handoff(worker, on_handoff=tell, input_type=Plan)
    forced = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    planner = Agent("planner", model=model("planner"), handoffs=[to_worker], model_settings=forced)
    said = (await Runner.run(planner, "What is 2 + 3?", max_turns=4)).final_output
    root = str(client.base_url).removesuffix("v1/")
    value = (sum(str(said).encode()) % 7 / 7 + told[0]) / 2
    await client.post(f"{root}reward", body={"value": value}, cast_to=object)


asyncio.run(main())
