"""inspect_ai: a task whose solver uses a tool and then asks again, over its three providers."""

import os

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, system_message, use_tools
from inspect_ai.tool import Tool, tool


@tool
def add() -> Tool:
    async def execute(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: one number.
            b: the other.
        """
        return a + b

    return execute


@solver
def again() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state.messages.append(ChatMessageUser(content="And now?"))
        return await generate(state)

    return solve


speak = os.environ["SPEAK"]
config = GenerateConfig(max_tokens=2000)
if speak == "messages":
    model = get_model("anthropic/m", config=config)
else:
    model = get_model("openai/m", config=config, responses_api=speak == "responses")
solvers = [system_message("Use add."), use_tools(add()), generate(), again()]
(log,) = eval(
    Task(dataset=[Sample(input="What is 2 + 3?")], solver=solvers), model=model, display="none", log_dir="logs"
)
assert log.status == "success", log.error
print(log.samples[0].output.completion)
