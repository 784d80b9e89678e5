"""openhands-sdk: an agent with a tool, then a second question; over Chat Completions and, as gpt-5, over Responses."""

import os
from collections.abc import Sequence

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.tool import Action, Observation, ToolDefinition, ToolExecutor, register_tool


class AddAction(Action):
    """Two numbers."""

    a: int
    b: int


class SumObservation(Observation):
    """Their sum."""


class Executor(ToolExecutor):
    def __call__(self, action: AddAction, conversation=None) -> SumObservation:
        return SumObservation.from_text(str(action.a + action.b))


class AddTool(ToolDefinition[AddAction, SumObservation]):
    name = "add"

    @classmethod
    def create(cls, conv_state=None, **params) -> Sequence["AddTool"]:
        tool = cls(description="Add.", action_type=AddAction, observation_type=SumObservation, executor=Executor())
        return [tool]


register_tool("add", AddTool)
names = {"chat": "openai/m", "responses": "openai/gpt-5"}
llm = LLM(
    model=names[os.environ["SPEAK"]],
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    temperature=0.0,
    top_p=0.9,
    seed=7,
    max_output_tokens=int(os.environ.get("MAX_TOKENS", "2000")),
    num_retries=0,
)
agent = Agent(llm=llm, tools=[Tool(name="add")])
conversation = Conversation(agent=agent, workspace=os.environ["HOME"], visualizer=None)
for text in ("What is 2 + 3?", "And now?"):
    conversation.send_message(text)
    conversation.run()
conversation.close()
