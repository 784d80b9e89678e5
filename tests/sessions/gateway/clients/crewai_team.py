"""crewai: a crew of a planner and a worker with a task each, twice, each with a model of its own."""

import os

from crewai import LLM, Agent, Crew, Task

base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]


def hired(name, goal):
    llm = LLM(model=f"openai/{name}", base_url=base, api_key=key, max_tokens=2000)
    return Agent(role=name, goal=goal, backstory=goal, llm=llm, max_iter=2)


planner, worker = hired("planner", "Plan."), hired("worker", "Answer.")
tasks = [
    Task(description=f"{what}: what is 2 + {number}?", expected_output="A line.", agent=agent)
    for number in (3, 4)
    for what, agent in (("Plan", planner), ("Answer", worker))
]
print(Crew(agents=[planner, worker], tasks=tasks).kickoff())
