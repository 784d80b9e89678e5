"""`env=questions`: a published question set, answered in one turn and checked by what kind of answer it has."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.questions import latex
from agentrl.envs.builtin.questions.boxes import HALF, box_of, only_box, overlap
from agentrl.envs.builtin.questions.formats import ANSWERS, COLUMNS, Grading, Question, number_of_choices, question
from agentrl.envs.builtin.questions.images import FIELD, folder_of, is_kept, show_question, urls_of
from agentrl.envs.builtin.questions.stated import chosen_letter, stated_answer
from agentrl.envs.builtin.search_r1.scoring import exact_match, f1
from agentrl.envs.builtin.search_r1.scoring import normalize as words_of
from agentrl.envs.check.trivial import CHOICES
from agentrl.envs.data import hub
from agentrl.envs.data.dataset import Dataset, files_of
from agentrl.envs.data.overlap import Overlap
from agentrl.envs.data.rows import describe_content
from agentrl.envs.data.splits import TaskList, divide
from agentrl.errors import ConfigError
from agentrl.types import Message, Session, Task

INSTRUCTIONS = {
    Grading.MATH: "Solve the problem step by step. End with the answer in \\boxed{}.",
    Grading.EXACT: 'Answer the question in a few words, behind "Answer:".',
    Grading.CLOSER: 'Answer the question in one sentence, behind "Answer:".',
    Grading.BOX: (
        "Think within <think></think>, then give the box in pixels of the image: "
        '<answer>{"bbox_2d": [x1, y1, x2, y2]}</answer>'
    ),
    Grading.CHOICE: 'Think step by step, then end with "Answer:" and the letter of the right choice.',
}
QUESTION = "{question}"
"""In `instructions`: where the question stands."""


class Questions(Env):
    """A published question set from a file, a folder or the hub, checked by its answers.

    Args:
        path: a .jsonl, .json, .csv or .parquet file, a folder with files for its splits, or hf://OWNER/NAME.
        eval_path: another one for the split `eval`; without it `path` has both, or a tenth is held out.
        columns: names for columns, such as env.columns.question=prompt and env.columns.answer=target.
        where: which rows: env.where.level=[4,5], env.where.year.min=2024, or path/to/file.py:function.
        config: which configuration of the data set, a folder in it.
        grading: math, exact, choice, box (over half in common with the right one), or closer (to a right answer than to
            any wrong one); None is what suits the columns.
        instructions: the system message, or, with {question} in it, the user's; None is the grading's own.
        images: the folder that paths of images start from; None is the data's own.
        decontaminate: leave out training questions that share a run of so many words with an eval question; 0: none.
        endpoint: the hub's address.
    """

    max_turns = 1

    def __init__(
        self,
        path: str,
        eval_path: str | None = None,
        columns: dict[str, str] | None = None,
        where: dict[str, Any] | str | None = None,
        config: str = "",
        grading: str | None = None,
        instructions: str | None = None,
        images: str | None = None,
        decontaminate: int = 0,
        endpoint: str = hub.HUB,
    ) -> None:
        if grading is not None and grading not in set(Grading):
            raise ConfigError(f"env.grading = {grading!r}: allowed are {', '.join(Grading)}")
        if decontaminate < 0:
            raise ConfigError(f"env.decontaminate = {decontaminate}: must be 0 or more (words)")
        for key, value in (("path", path), ("eval_path", eval_path), ("images", images)):
            if value is not None and not hub.is_hub(value) and not Path(value).expanduser().exists():
                raise ConfigError(f"env.{key} = {value!r}: {hub.no_such_file(value)}")
        common: dict[str, Any] = {"columns": columns or {}, "where": where, "config": config, "endpoint": endpoint}
        self.sets: dict[str, dict[str, Any]] = {
            "train": {"path": path, **common},
            "eval": {"path": eval_path or path, **common},
        }
        self.separate = eval_path is not None
        folders = [Path(images).expanduser()] if images else map(folder_of, (path, eval_path or path))
        self._folders = [folder for folder in folders if folder is not None]
        self.grading, self.instructions, self.decontaminate = grading, instructions, decontaminate
        self._question = Question("", (), Grading.EXACT)

    def tasks(self, split: str = "train") -> list[Task]:
        tasks = self._read(split)
        if split == "train" and self.decontaminate:
            overlap = Overlap((task["question"] for task in self._read("eval")), self.decontaminate)
            kept = [task for task in tasks if not overlap.shared(task["question"])]
            left_out = f"{len(tasks) - len(kept)} share {self.decontaminate} words with an eval question: left out"
            tasks = TaskList(kept, (*tasks.notes, left_out))
        return tasks

    def _read(self, split: str) -> TaskList:
        settings = self.sets[split]
        spec = json.dumps({**settings, "split": split, "grading": self.grading, "whole": self.separate})
        return _tasks(spec, _stamp(settings["path"])).copy()

    def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        grading = Grading(task["grading"])
        self._question = Question(task["question"], tuple(task["answers"]), grading, tuple(task.data.get("wrong", ())))
        words = INSTRUCTIONS[grading] if self.instructions is None else self.instructions
        within = QUESTION in words
        opening = [Message(role="system", content=words)] if words and not within else []
        text = words.replace(QUESTION, task["question"]) if within else task["question"]
        images = self._images(task)
        content = show_question(text, images, self._folders) if images else text
        return [*opening, Message(role="user", content=content)]

    def chance_of(self, tasks: Sequence[Task]) -> float | None:
        """A guess's mean reward: one of a question's choices, or of the right answers of all where these are few."""
        few = _few(tasks)
        guesses = [_guess(task, few) for task in tasks]
        return fmean(guesses) if any(guesses) else None

    def brief(self, task: Task) -> Task:
        """The question and its images, as data URLs, without its answers."""
        images = urls_of(self._images(task), self._folders)
        return Task(id=task.id, data={"question": task["question"]} | ({FIELD: images} if images else {}))

    def _images(self, task: Task) -> list[str]:
        """The task's images; their file is read first where another process read it."""
        images = list(task.get(FIELD, ()))
        if not all(map(is_kept, images)):
            for split in self.sets:
                self._read(split)
        return images

    def state(self) -> None:
        """Nothing but the task."""

    def restore(self, task: Task, state: None) -> None:
        self.reset(task)

    @reward
    def correct(self, session: Session) -> float:
        """1 where the answer is a right one."""
        return float(right(session.answer, self._question))

    @reward(weight=0.0)
    def f1(self, session: Session) -> float | None:
        """The words in common with a right answer; it does not count, and is None where answers are not texts."""
        if self._question.grading not in (Grading.EXACT, Grading.CLOSER):
            return None
        return f1(stated_answer(session.answer), self._question.answers)

    def expert(self, messages: Sequence[Message]) -> str:
        answer = self._question.answers[0]
        if self._question.grading is Grading.BOX:
            return f'<think>It is there.</think><answer>{{"bbox_2d": {answer}}}</answer>'
        return f"\\boxed{{{answer}}}" if self._question.grading is Grading.MATH else f"Answer: {answer}"


def right(text: str, asked: Question) -> bool:
    """Return whether a text answers a question rightly."""
    if asked.grading is Grading.MATH:
        said = latex.find_stated(text)
        return said is not None and any(latex.equal(said, answer) for answer in asked.answers)
    if asked.grading is Grading.BOX:
        box, there = only_box(text), box_of(asked.answers)
        return box is not None and there is not None and overlap(box, there) > HALF
    if asked.grading is Grading.CHOICE:
        return chosen_letter(text) in asked.answers
    if asked.grading is Grading.CLOSER:
        return f1(stated_answer(text), asked.answers) > f1(stated_answer(text), asked.wrong)
    return bool(exact_match(stated_answer(text), asked.answers))


def _few(tasks: Sequence[Task]) -> set[str]:
    """The different right answers, the first of each question, where they are so few that they are choices."""
    first = [words_of(task["answers"][0]) for task in tasks if task["grading"] == Grading.EXACT]
    return set(first) if len(set(first)) <= CHOICES * len(first) else set()


def _guess(task: Task, few: Set[str]) -> float:
    """A guess's chance to be right, of the question's choices, or of a few answers; 0 where there are neither."""
    if task["grading"] == Grading.CHOICE:
        return 1 / number_of_choices(task["question"])
    if task["grading"] != Grading.EXACT or not few:
        return 0.0
    return len(few & set(map(words_of, task["answers"]))) / len(few)


@lru_cache(maxsize=16)
def _tasks(spec: str, stamp: Any) -> TaskList:
    """The questions of a set; read again where `stamp`, the files' times, has changed."""
    settings = json.loads(spec)
    split, grading, whole = settings.pop("split"), settings.pop("grading"), settings.pop("whole")
    data = Dataset(**settings)
    rows = data.every_row() if whole else data.rows(split)
    where = f"env.path = {data.path!r}"
    columns = dict[str, None]()
    made = list(_make_tasks(rows, Grading(grading) if grading else None, columns))
    read = [task for task, *_ in made if task is not None]
    if not read:
        left_out = f" (env.where leaves {data.left_out['where']:,} rows out)" if data.left_out else ""
        raise ConfigError(f"{where}: it holds no questions for the split {split!r}{left_out}")
    _check_clear(read, sum(unclear for _, unclear, _ in made), where)
    dropped = {
        "rows without an answer": len(made) - len(read),
        "rows that env.where leaves out": data.left_out["where"],
    }
    notes = [_describe_detected(read, dropped, _list_ignored(columns, data), where)]
    if shared := _shared_ids(read):
        read = [
            Task(id=place, data=task.data) if task.id in shared else task for task, _, place in made if task is not None
        ]
        notes.append(f"{where}: different questions have the id {shared[0]!r}: rows are named by their places")
    notes += [] if whole else data.note_unread()
    if whole or not data.shared():
        return TaskList(read, notes)
    divided = divide(read, split, _content, where)
    return TaskList(divided, [*notes, *divided.notes])


def _check_clear(tasks: Sequence[Task], unclear: int, where: str) -> None:
    """Refuse answers that may be meant as mathematics or as words: where they are numbers, and no other is text.

    Raises:
        ConfigError: they are.
    """
    if unclear and unclear == sum(task["grading"] == Grading.EXACT for task in tasks):
        first = next(task["answers"][0] for task in tasks if task["grading"] == Grading.EXACT)
        raise ConfigError(
            f"{where}: {unclear:,} answers are numbers that are written as text, such as {first!r}: say whether they "
            "are compared as mathematics (env.grading=math: 4.0 is 4) or as words (env.grading=exact)"
        )


def _shared_ids(tasks: Sequence[Task]) -> list[str]:
    """Ids of several different questions: results are paired by them."""
    texts = defaultdict[str, set[str]](set)
    for task in tasks:
        texts[task.id].add(_content(task))
    return [name for name, found in texts.items() if len(found) > 1]


def _content(task: Task) -> str:
    """Return what makes a question another one: its text, and its images."""
    return "\n".join([str(task["question"]), *task.get(FIELD, ())])


def _list_ignored(columns: Mapping[str, None], data: Dataset) -> list[str]:
    """The columns of a set that no question is made of."""
    lower = {name.lower() for name in columns}
    used = set(COLUMNS) | {name.lower() for theirs in data.columns.values() for name in (theirs, theirs.split(".")[0])}
    if not lower & {"problem", "question", "question_text"}:
        used.add("prompt")
    if not lower & ANSWERS and "solution" not in lower:
        used |= {"reward_model", "label"} if "reward_model" not in lower else {"reward_model"}
    where = data.where if isinstance(data.where, Mapping) else {}
    return [name for name in columns if name.lower() not in used and name not in where]


def _describe_detected(tasks: Sequence[Task], dropped: Mapping[str, int], ignored: Sequence[str], where: str) -> str:
    """Return what was found in the rows of a set, in words."""
    gradings = Counter(str(task["grading"]) for task in tasks)
    graded = ", ".join(f"{grading} ({count:,})" for grading, count in gradings.items())
    words = f"{describe_content(where, len(tasks), 'questions', {}, ignored)}; graded as {graded}"
    numbers = sum(
        task["grading"] == Grading.EXACT and all(latex.number(answer) is not None for answer in task["answers"])
        for task in tasks
    )
    if numbers:
        words += f", {numbers:,} of them numbers that are compared as words (env.grading=math compares values)"
    return words + "".join(f"; {kind}, left out: {count:,}" for kind, count in dropped.items() if count)


def _make_tasks(
    rows: Iterator[tuple[str, Mapping[str, Any]]], grading: Grading | None, columns: dict[str, None]
) -> Iterator[tuple[Task | None, bool, str]]:
    """A task of each row (None: it has no answer), whether its grading is unclear, and its place; notes the columns."""
    for place, row in rows:
        columns |= dict.fromkeys(map(str, row))
        try:
            asked = question(row, grading)
        except ValueError as error:
            raise ConfigError(f"{place}: {error} (columns: {', '.join(map(str, row))})") from None
        if asked is None:
            yield None, False, place
            continue
        name = next(
            (row[key] for key in ("unique_id", "task_id", "id", "ID", "example_id", "_id") if row.get(key)), place
        )
        data = {"question": asked.text, "answers": list(asked.answers), "grading": asked.grading.value}
        data |= {"wrong": list(asked.wrong)} if asked.wrong else {}
        data |= {FIELD: list(asked.images)} if asked.images else {}
        yield Task(id=str(name), data=data), asked.unclear, place


def _stamp(path: str) -> Any:
    if hub.is_hub(path):
        return None
    place = Path(path).expanduser()
    files = files_of(place) if place.is_dir() else [place]
    return tuple(sorted((str(file), file.stat().st_mtime_ns) for file in files if file.is_file()))
