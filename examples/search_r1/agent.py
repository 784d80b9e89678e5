"""Search-R1 on the plain `openai` client: a loop, a search engine by HTTP, nothing of agentrl.

    agentrl train env=search_r1 agent=examples/search_r1/agent.py:agent
    agentrl eval  env=search_r1 agent=examples/search_r1/agent.py:agent

The task has the question, the prompt and the retrieval server's address. The tags are the published ones; each
search's result is a user's message, as chat interfaces have it.
"""

from __future__ import annotations

import re
from typing import Any

import httpx
from openai import AsyncOpenAI

MAX_SEARCHES = 4
TOPK = 3
REMINDER = "There is no query between <search> and </search> and no answer between <answer> and </answer>. Try again."


async def search(http: httpx.AsyncClient, server: str, query: str) -> str:
    """What the model reads of the passages found."""
    request = {"queries": [query], "topk": TOPK, "return_scores": True}
    response = (await http.post(server, json=request)).raise_for_status()
    [found] = response.json()["result"]
    passages = [each["document"]["contents"].partition("\n") for each in found]
    text = "\n".join(f"Doc {n}(Title: {title}) {body}" for n, (title, _, body) in enumerate(passages, 1))
    return f"<information>{text}</information>"


async def agent(task: Any, client: AsyncOpenAI) -> str:
    """Answer one question: let the model write until it searches or answers, search, and go on."""
    messages: list[Any] = [{"role": "user", "content": task["prompt"].format(question=task["question"])}]
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for _ in range(MAX_SEARCHES + 1):
            reply = await client.chat.completions.create(model="policy", messages=messages, stop=["</search>"])
            text = reply.choices[0].message.content or ""
            if answer := re.search(r"<answer>(.*?)</answer>", text, re.DOTALL):
                return answer[1].strip()
            if reply.choices[0].finish_reason == "length":
                break
            query = re.search(r"<search>([^<]*)$", text)
            messages.append({"role": "assistant", "content": f"{text}</search>" if query else text})
            told = await search(http, task["retriever"], query[1].strip()) if query else REMINDER
            messages.append({"role": "user", "content": told})
    return ""
