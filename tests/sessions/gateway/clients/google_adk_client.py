"""google-adk: an agent with a tool, on its litellm model, or on its own, which speaks Google's protocol."""

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


def add(a: int, b: int) -> dict:
    """Add two numbers."""
    return {"sum": a + b}


async def main() -> None:
    base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    other = LiteLlm(model="openai/m", api_base=base, api_key=key, max_tokens=2000)
    model = "gemini-m" if os.environ["SPEAK"] == "google" else other
    agent = LlmAgent(name="adder", model=model, instruction="Use add.", tools=[add])
    runner = InMemoryRunner(agent=agent, app_name="sums")
    session = await runner.session_service.create_session(app_name="sums", user_id="u")
    for text in ("What is 2 + 3?", "And now?"):
        said = types.Content(role="user", parts=[types.Part(text=text)])
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=said):
            print(event.content)


asyncio.run(main())
