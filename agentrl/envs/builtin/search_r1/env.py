"""The environment `search_r1`: a question, a search engine, and one assistant message that goes on after each search.

As published, everything after the prompt is one assistant message: a turn ends behind `</search>` or `</answer>`, and
what was retrieved is inserted behind it as text, untrained, token for token (`StepResult.continuation`). A turn without
an action gets the published reminder. After `max_searches` actions there is one more turn, whose search is not run.
With `form=tools` the same questions are asked with a search tool in the model's own format of calls.

Two things differ from the published code, on purpose: a turn that reaches its token limit ends the session (nothing may
follow a turn that was cut), and rewards see the model's own text alone (`scoring`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.search_r1 import scoring
from agentrl.envs.builtin.search_r1.data import FOLDER, folder_of, split_tasks
from agentrl.envs.builtin.search_r1.prompts import INVALID, PROMPT, TOOLS_PROMPT
from agentrl.envs.builtin.search_r1.published import SETS
from agentrl.envs.data.rows import require_file
from agentrl.errors import ConfigError, ToolError
from agentrl.retrieval.client import RetrievalClient
from agentrl.retrieval.corpus import Passage
from agentrl.retrieval.service import service
from agentrl.types import Message, Session, StepResult, Task

EARLIER = 0.9
"""The part of a tool's time in which a search must end."""
LOGGED = 1e9
"""The upper bound of values that are logged, not rewarded."""


def _exact_of(source: str) -> Callable[[SearchR1, Session], float | None]:
    """A logged reward: exact match on the questions of one published set."""

    @reward(weight=0.0, name=f"exact_{source}")
    def exact_of(self: SearchR1, session: Session) -> float | None:
        return self.exact(session) if self._task.get("source") == source else None

    return exact_of


class SearchR1(Env):
    """Questions answered with a search engine, as in Search-R1.

    Args:
        data: the data folder, with train.jsonl, eval.jsonl (or test.jsonl; or .parquet) and the indexes, or its file to
            train on; `agentrl search-r1 prepare` writes one. Demonstrations are of demo.jsonl where there is one.
        questions: a file of questions (.jsonl or .parquet) for the split `eval`, instead of the folder's.
        retriever: `bm25` or `dense`, the data folder's index of that name, or a server's address.
        form: `text`, the published tags; or `tools`, native tool calls.
        max_searches: actions before the last turn.
        topk: passages of a search.
        passage_words: words of a passage that the model sees; None is all.
        search_timeout: seconds of a search, all attempts together; with tools it ends before `rollout.tool_timeout`.
        outcome: what is rewarded: `em`, exact match; `f1`; or `format`, exact match with the share of the published
            format, which only `form=text` has.
    """

    splits = ("train", "eval", "demo")
    version = "1"

    needs = "a data folder: agentrl search-r1 prepare"

    def __init__(
        self,
        data: str | Path = FOLDER,
        questions: str | Path | None = None,
        retriever: str = "bm25",
        form: Literal["text", "tools"] = "text",
        max_searches: int = 4,
        topk: int = 3,
        passage_words: int | None = None,
        search_timeout: float = 30.0,
        outcome: Literal["em", "f1", "format"] = "em",
    ) -> None:
        self.data = Path(data).expanduser()
        self.questions = None if questions is None else require_file("env.questions", questions)
        if retriever not in ("bm25", "dense") and not retriever.startswith(("http://", "https://")):
            raise ConfigError(f"env.retriever = {retriever!r}: allowed are bm25, dense and an address (http://…)")
        if outcome == "format" and form == "tools":
            raise ConfigError("env.outcome = 'format': native calls have no tags to be rewarded for; set env.form=text")
        above = {"max_searches": max_searches, "topk": topk, "search_timeout": search_timeout}
        for key, value in {**above, "passage_words": 1 if passage_words is None else passage_words}.items():
            if value <= 0:
                raise ConfigError(f"env.{key} = {value}: it must be above 0")
        self.retriever, self.form, self.max_searches, self.topk = retriever, form, max_searches, topk
        self.passage_words, self.search_timeout, self.outcome = passage_words, search_timeout, outcome
        self.max_turns = max_searches + 1
        self._actions, self._valid = 0, 0
        self._found: list[str] = []
        self._task = Task(id="", data={"question": "", "answers": []})
        if form == "text":
            self.stop_strings = ("</search>", "</answer>")
        else:
            self.tools.add(self.search)

    def tasks(self, split: str = "train") -> list[Task]:
        return split_tasks(self.data, split, self.questions)

    def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        self.client()

    def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        self._task, self._actions, self._valid, self._found = task, 0, 0, []
        prompt = PROMPT if self.form == "text" else TOOLS_PROMPT
        return [Message(role="user", content=prompt.format(question=task["question"]))]

    async def step(self, message: Message) -> StepResult:
        self._actions += 1
        if self.form == "tools":
            return await self._step_with_tools(message)
        action = scoring.action(message.text)
        self._valid += action is not None
        if (action and action[0] == "answer") or self._actions > self.max_searches:
            return StepResult(terminated=True)
        if action is None:
            return StepResult(continuation=INVALID)
        return StepResult(continuation=f"\n\n<information>{(await self._search(action[1])).strip()}</information>\n\n")

    async def _step_with_tools(self, message: Message) -> StepResult:
        """Run the turn's searches; those of the last turn are not run."""
        found, last = len(self._found), self._actions > self.max_searches
        result = StepResult(terminated=True) if last else await self.run_tools(message)
        self._valid += len(self._found) > found or scoring.find_given([message.text]) is not None
        return result

    async def search(self, query: str) -> str:
        """Search for passages.

        Args:
            query: what to look for.
        """
        if len(self._found) >= self.max_searches:
            raise ToolError(f"there were {self.max_searches} searches, and there are no more; give the answer")
        return await self._search(query)

    async def _search(self, query: str) -> str:
        [passages] = await self.client().search([query], self.topk)
        text = "".join(
            f"Doc {place}(Title: {each.title}) {self._cut(each)}\n" for place, each in enumerate(passages, 1)
        )
        self._found.append(text)
        return text

    def _cut(self, passage: Passage) -> str:
        return passage.body if self.passage_words is None else " ".join(passage.body.split()[: self.passage_words])

    def client(self) -> RetrievalClient:
        """Return the client of the service that searches."""
        url = self.retriever if "://" in self.retriever else service(folder_of(self.data) / self.retriever).url
        timeout = self.search_timeout  # a tool that runs past its own limit would be told to the model as its error
        return _client(url, min(timeout, EARLIER * self.tools.timeout) if self.form == "tools" else timeout)

    def state(self) -> dict[str, Any]:
        return {"actions": self._actions, "valid": self._valid, "found": self._found}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        self._task = task
        self._actions, self._valid, self._found = state["actions"], state["valid"], state["found"]

    def brief(self, task: Task) -> Task:
        url = self.client().url
        return Task(id=task.id, data={"question": task["question"], "retriever": url, "prompt": PROMPT})

    # ----------------------------------------------------------------------------------- rewards

    @reward
    def correct(self, session: Session) -> float:
        """The outcome that `env.outcome` names."""
        answer = scoring.find_given(_turns(session))
        if self.outcome == "f1":
            return scoring.f1(answer, self._task["answers"])
        match = scoring.exact_match(answer, self._task["answers"])
        return scoring.with_format(match, _whole(session)) if self.outcome == "format" else match

    @reward(weight=0.0)
    def exact(self, session: Session) -> float:
        """Exact match, logged."""
        return scoring.exact_match(scoring.find_given(_turns(session)), self._task["answers"])

    @reward(weight=0.0)
    def f1(self, session: Session) -> float:
        """F1 of the answer's words against the nearest right answer's, logged."""
        return scoring.f1(scoring.find_given(_turns(session)), self._task["answers"])

    @reward(weight=0.0)
    def formed(self, session: Session) -> float | None:
        """Return whether the response has the published format, logged."""
        return float(scoring.well_formed(_whole(session))) if self.form == "text" else None

    @reward(weight=0.0, range=(0.0, LOGGED))
    def searches(self, session: Session) -> float:
        """Searches, logged."""
        return float(len(self._evidence(session)))

    @reward(weight=0.0)
    def valid_actions(self, session: Session) -> float | None:
        """The share of turns with an action, logged."""
        return min(self._valid / self._actions, 1.0) if self._actions else None

    @reward(weight=0.0)
    def retrieved(self, session: Session) -> float:
        """Return whether a right answer was in what was found (the retrieval's recall), logged."""
        return float(scoring.contains("\n".join(self._evidence(session)), self._task["answers"]))

    def _evidence(self, session: Session) -> list[str]:
        """Return what each search found; an agent program searches by itself, and its messages say what it was told."""
        told = "\n".join(message.text for message in session.messages if message.role != "assistant")
        return self._found or scoring.information(told.removeprefix(PROMPT.format(question=self._task["question"])))

    @reward(weight=0.0)
    def missed(self, session: Session) -> float:
        """Return whether a right answer was found and not given, logged."""
        return self.retrieved(session) * (1.0 - self.exact(session))

    @reward(weight=0.0, range=(0.0, LOGGED))
    def reasoning_words(self, session: Session) -> float:
        """Words between think tags, logged."""
        return float(len(scoring.reasoning("\n".join(_turns(session))).split()))

    @reward(weight=0.0)
    def copied(self, session: Session) -> float:
        """The share of the model's own text that is copied from passages, logged."""
        return scoring.measure_copied("\n".join(_turns(session)), "\n".join(self._evidence(session)))

    @reward(weight=0.0)
    def exact_one_hop(self, session: Session) -> float | None:
        """Exact match of questions that need one passage, logged."""
        return self.exact(session) if self._task.get("hops", 1) == 1 else None

    @reward(weight=0.0)
    def exact_more_hops(self, session: Session) -> float | None:
        """Exact match of questions that need several passages, logged."""
        return self.exact(session) if self._task.get("hops", 1) > 1 else None

    exact_nq, exact_triviaqa, exact_popqa, exact_hotpotqa, exact_2wiki, exact_musique, exact_bamboogle = map(
        _exact_of, SETS
    )

    # ------------------------------------------------------------------------------ demonstrations

    def expert(self, messages: Sequence[Message]) -> str | Message:
        """Search for the question, or in its steps; quote what was found each time, and answer."""
        steps = self._task.get("steps") or [[self._task["question"], self._task["answers"][0]]]
        done = min(len(self._found), len(steps))
        thought = self._quote(steps[done - 1][1]) if done else "I have to look this up."
        if done == min(len(steps), self.max_searches):
            return f"<think> {thought} </think>\n<answer> {self._task['answers'][0]} </answer>"
        query = steps[done][0]
        if self.form == "tools":
            return self.call("search", query=query)
        return f"<think> {thought} </think>\n<search> {query} </search>"

    def _quote(self, right: str) -> str:
        """A few words around the answer, where it was found."""
        text = " ".join(self._found[-1].split())
        place = text.find(right)
        if place < 0:
            return "The passages do not say it."
        before, after = text[:place].split()[-8:], text[place + len(right) :].split()[:6]
        return f"It says: {' '.join(before)} {right} {' '.join(after)}"


_clients: dict[tuple[str, float], RetrievalClient] = {}


def _client(url: str, timeout: float) -> RetrievalClient:
    """The process's client of an address: connections are kept between episodes."""
    return _clients.setdefault((url, timeout), RetrievalClient(url, timeout))


def _turns(session: Session) -> list[str]:
    return [message.text for message in session.messages if message.role == "assistant"]


def _whole(session: Session) -> str:
    """The response with what was inserted; passages are left out, as tags in them are not the model's."""
    messages = [message for message in session.messages if message.role in ("assistant", "tool")]
    return "".join(
        "<information></information>" if message.role == "tool" and message.text != INVALID else message.text
        for message in messages
    )
