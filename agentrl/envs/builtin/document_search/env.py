"""`env=document_search`: questions about a document far longer than the context, with a search and a reader.

Documents are made from a seed, or are the user's own text files. Answers lie in up to three places: which one comes
next is known only from the one before, or what was read must be kept until the last. The answer is on the last line.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.data_analysis.env import same
from agentrl.envs.builtin.document_search.document import Document
from agentrl.envs.builtin.document_search.files import DocumentQuestions, read_questions
from agentrl.envs.builtin.document_search.generate import DOCUMENTS, SIZES, chronicle, question
from agentrl.errors import ConfigError, ToolError
from agentrl.tools.threads import run_in_thread
from agentrl.tools.tool import tool
from agentrl.types import Message, Session, StepResult, Task

EVAL_EVERY = 5
"""One document in this many is for `eval`."""
LEAST_COMPACT = 500
"""Characters; less than one section would be compacted at every turn."""
MAX_NOTES = 2_000
"""Characters that an agent takes along when its history is compacted."""
SUMMARISE = (
    "Your history will be removed now. Write down in plain text what you have found and what is left to do; you will "
    "see the question and these notes, and nothing else."
)
MAX_QUERY = 300
"""Characters of a query."""
NOTHING = "No section has any of these words."
OPENING = (
    "Answer the question from a document of {sections} sections. `search` finds sections by words, `read` shows one. "
    "Write the answer alone on the last line, after 'Answer:'.\n\n{question}"
)


class DocumentSearch(Env):
    """Questions over several places of a long document, with a search and a reader.

    Args:
        path: a folder of text files and questions.jsonl with the fields `document` (a file), `question` and `answer`;
            without it documents are made from a seed.
        level: of made documents, 1 to 3; without it they are mixed.
        seed: which made documents there are.
        compact: characters of messages after which the agent is asked for notes and goes on with the question and
            these alone; None keeps the whole history.
    """

    max_turns = 30

    def __init__(
        self, path: str | Path | None = None, level: int | None = None, seed: int = 0, compact: int | None = None
    ) -> None:
        if compact is not None and compact < LEAST_COMPACT:
            raise ConfigError(f"env.compact = {compact}: it must be at least {LEAST_COMPACT} (characters)")
        if level is not None and level not in SIZES:
            raise ConfigError(f"env.level = {level}: allowed are {', '.join(map(str, SIZES))}")
        if level is not None and path is not None:
            raise ConfigError(f"env.level = {level} is for made documents; env.path = {str(path)!r} has its own")
        self.level, self.seed, self.compact = level, seed, compact
        self._history = self._done = 0
        self._summarising = False
        self._files: DocumentQuestions | None = None if path is None else read_questions(Path(path).expanduser())
        self._task, self._document = Task(id=""), Document(())

    def tasks(self, split: str = "train") -> Iterable[Task]:
        """The folder's questions, or questions on made documents without end."""
        return self._made(split) if self._files is None else self._files.tasks(split)

    def _made(self, split: str) -> Iterator[Task]:
        mine = [number for number in range(DOCUMENTS) if (number % EVAL_EVERY == 0) == (split == "eval")]
        for index in count():
            rng = random.Random(f"document_search/{self.seed}/{split}/{self.level}/{index}")
            level, number = self.level or rng.choice(list(SIZES)), rng.choice(mine)
            data = question(rng, level, chronicle(self.seed, level, number))
            name = f"document-{self.seed}-{split}-{self.level or 'all'}-{index}"
            yield Task(id=name, data={"level": level, "document": number, **data})

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        """The question."""
        await self._open(task)
        self._history = self._done = 0
        self._summarising = False
        return self._opening()

    def _opening(self) -> str:
        return OPENING.format(sections=len(self._document.sections), question=self._task["question"])

    async def step(self, message: Message) -> StepResult:
        """Run the calls; where the history has grown too long, ask for notes, and begin anew with them."""
        if self._summarising:
            self._summarising, self._history = False, 0
            words = f"{self._opening()}\n\nYour notes so far:\n{message.text[:MAX_NOTES]}"
            return StepResult([Message(role="user", content=words)], fresh=True)
        result = await self.run_tools(message)
        self._done += len(result.messages)
        self._history += sum(len(each.text) for each in (message, *result.messages))
        if self.compact is not None and self._history > self.compact and not result.terminated:
            self._summarising = True
            result.messages.append(Message(role="user", content=SUMMARISE))
        return result

    async def _open(self, task: Task) -> None:
        self._task = task
        if self._files is not None:
            self._document = self._files.documents[task["document"]]
        else:
            self._document = await run_in_thread(chronicle, self.seed, task["level"], task["document"])

    @tool(quick=True)
    def search(self, query: str) -> str:
        """Find sections by words.

        Args:
            query: words that should be in the section; rare ones count more.
        """
        if len(query) > MAX_QUERY:
            raise ToolError(f"the query has {len(query)} characters; at most {MAX_QUERY} are allowed")
        found = self._document.search(query)
        return (
            "\n".join(f"Section {number}: … {self._document.excerpt(number, query)} …" for number in found) or NOTHING
        )

    @tool(quick=True)
    def read(self, section: int) -> str:
        """Read a section.

        Args:
            section: its number, from 1.
        """
        last = len(self._document.sections)
        if not 1 <= section <= last:
            raise ToolError(f"section must be from 1 to {last}")
        return self._document.sections[section - 1]

    def state(self) -> dict[str, Any]:
        """The count of messages since the history's beginning, and of answered calls."""
        return {"history": self._history, "done": self._done, "summarising": self._summarising}

    async def restore(self, task: Task, state: dict[str, Any]) -> None:
        """Continue with the task."""
        await self._open(task)
        self._history, self._done, self._summarising = state["history"], state["done"], state["summarising"]

    def brief(self, task: Task) -> Task:
        """The question without its answer."""
        return Task(id=task.id, data={"question": task["question"], "document": task["document"]})

    @reward
    def correct(self, session: Session) -> float:
        """1 where the last line is the answer."""
        return float(same(session.answer, self._task["answer"]))

    def expert(self, messages: Sequence[Message]) -> str | Message:
        """Search for each place and read it; the answer to a question of the user's own is known without."""
        if self._summarising:
            return (
                "\n".join(self._task.get("notes", [])[: self._done // 2]) or "Nothing yet."
            )  # two calls for each place
        calls = self._task.get("calls", [])
        if self._done < len(calls):
            return self.call(calls[self._done][0], **calls[self._done][1])
        return f"Answer: {self._task['answer']}"
