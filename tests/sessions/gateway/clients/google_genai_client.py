"""google-genai: a conversation with a tool and log-probabilities, whole and streamed; Google's native protocol."""

import os

from google import genai
from google.genai import types


def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


client = genai.Client()
config = types.GenerateContentConfig(
    system_instruction="Use add.", tools=[add], max_output_tokens=2000, response_logprobs=True, logprobs=2
)
chat = client.chats.create(model="m", config=config)
for text in ("What is 2 + 3?", "And now?"):
    if os.environ["SPEAK"] == "stream":
        *_, last = chat.send_message_stream(text)
    else:
        last = chat.send_message(text)
    print(last.candidates[0])
    result = last.candidates[0].logprobs_result
    assert len(result.chosen_candidates) == len(result.top_candidates) > 0, result
    assert all(one.candidates[0].log_probability <= 0 for one in result.top_candidates), result
