"""anthropic's tool_runner: a tool in a loop, which goes on in a thread, then a second question."""

import anthropic


@anthropic.beta_tool
def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: one
        b: another
    """
    return str(a + b)


client = anthropic.Anthropic(max_retries=0)
settings = {"model": "m", "max_tokens": 2000, "system": "Use add.", "tools": [add]}
drawn = {"extra_body": {"temperature": 0, "top_p": 0.9, "top_k": 20}}
messages = [{"role": "user", "content": "What is 2 + 3?"}]
for question in ("And now?", None):
    runner = client.beta.messages.tool_runner(messages=messages, **settings, **drawn)
    for message in runner:
        messages = [*messages, {"role": "assistant", "content": message.content}]
        result = runner.generate_tool_call_response()
        messages += [result] if result else []
    print(message.content)
    messages = [*messages, {"role": "user", "content": question}]
