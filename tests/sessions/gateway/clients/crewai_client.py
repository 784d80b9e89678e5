"""crewai: a crew of one agent with a tool; for models of whose calls it knows nothing (o1) it asks for text."""

import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
model = {"chat": "openai/m", "text": "openai/o1-m"}[os.environ["SPEAK"]]
llm = LLM(model=model, base_url=base, api_key=key, max_tokens=2000)
agent = Agent(role="adder", goal="Add.", backstory="You add.", llm=llm, tools=[add], max_iter=4)
task = Task(description="What is 2 + 3?", expected_output="A number.", agent=agent)
print(Crew(agents=[agent], tasks=[task]).kickoff())
