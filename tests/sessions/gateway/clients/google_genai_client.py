"""google-genai: a conversation with a tool, whole and streamed; Google's native protocol."""

import os

from google import genai
from google.genai import types


def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


client = genai.Client()
config = types.GenerateContentConfig(system_instruction="Use add.", tools=[add], max_output_tokens=2000)
chat = client.chats.create(model="m", config=config)
for text in ("What is 2 + 3?", "And now?"):
    if os.environ["SPEAK"] == "stream":
        for chunk in chat.send_message_stream(text):
            print(chunk.candidates)
    else:
        print(chat.send_message(text).candidates)
