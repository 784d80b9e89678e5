"""dspy: a ReAct module with a tool."""

import os

import dspy


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
kind = os.environ["SPEAK"]
dspy.configure(lm=dspy.LM("openai/m", api_base=base, api_key=key, max_tokens=2000, cache=False, model_type=kind))
print(dspy.ReAct("question -> answer: int", tools=[add], max_iters=3)(question="What is 2 + 3?").answer)
