"""Small data sets of our own, in the formats of published ones: one for each kind of answer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.envs.builtin.search_r1.env import SearchR1
from agentrl.envs.builtin.search_r1.squad import prepare_squad
from agentrl.retrieval.index import build
from tests.envs.in_process_index import InProcess

ROWS = 50
TOWNS = [
    "Ulm",
    "Basel",
    "Turin",
    "Lyon",
    "Graz",
    "Brno",
    "Vaduz",
    "Metz",
    "Pisa",
    "Bergen",
    "Malmo",
    "Tartu",
    "Cork",
    "Leeds",
    "Ghent",
    "Porto",
    "Split",
    "Varna",
]
GOODS = ("pears", "plums", "figs", "nuts", "eggs")
OFFERED = {
    "name": "travel.book",
    "description": "Book a seat.",
    "parameters": {
        "type": "dict",
        "properties": {"town": {"type": "string"}, "seats": {"type": "integer"}},
        "required": ["town", "seats"],
    },
}


def _sums() -> Iterable[tuple[int, int, str]]:
    """Two numbers, and a question for their product."""
    for n in range(ROWS):
        a, b, goods = 11 + n, 3 + n % 7, GOODS[n % len(GOODS)]
        yield a, b, f"Ann has {b} boxes of {a} {goods} each. How many {goods} has she?"


def gsm8k() -> list[dict[str, Any]]:
    """GSM8K's: a worked answer, with the number behind ####."""
    return [
        {"question": q, "answer": f"She has {a}*{b}=<<{a}*{b}={a * b}>>{a * b}.\n#### {a * b}"} for a, b, q in _sums()
    ]


def math() -> list[dict[str, Any]]:
    """MATH's: a solution with the answer in a box, half of them fractions."""
    answers = [f"\\frac{{{a}}}{{{b + 100}}}" if a % 2 else str(a * b) for a, b, _ in _sums()]
    return [
        {"problem": q, "solution": f"It is $\\boxed{{{x}}}$."} for x, (_, _, q) in zip(answers, _sums(), strict=True)
    ]


def words() -> list[dict[str, Any]]:
    """Natural Questions' kind: a name, with aliases."""
    names = [f"{TOWNS[n % len(TOWNS)]} {TOWNS[n // len(TOWNS) * 5 % len(TOWNS)]}" for n in range(ROWS)]
    return [{"question": f"Who is number {n}?", "answer": [name, f"Dr {name}"]} for n, name in enumerate(names)]


def choices() -> list[dict[str, Any]]:
    """MMLU's: four choices, each right equally often."""
    rng = random.Random(0)
    rows = [{"question": q, "choices": [str(a * b + 10 * k) for k in range(4)]} for a, b, q in _sums()]
    letters = [n % 4 for n in range(ROWS)]
    rng.shuffle(letters)
    return [{**row, "answer": letter} for row, letter in zip(rows, letters, strict=True)]


def verdicts() -> list[dict[str, Any]]:
    """BoolQ's: yes or no, each right equally often."""
    answers = [n % 2 == 0 for n in range(ROWS)]
    random.Random(0).shuffle(answers)
    return [
        {"question": q, "passage": "Ann counts.", "answer": x} for x, (_, _, q) in zip(answers, _sums(), strict=True)
    ]


def myths() -> list[dict[str, Any]]:
    """TruthfulQA's: right and wrong sentences, which are made alike."""
    rng = random.Random(0)
    rows = []
    for n in range(ROWS):
        right, alias, wrong, worse = rng.sample(TOWNS, 4)
        row = {"question": f"Where is stone {n}?", "best_answer": f"The stone is in {right}"}
        row["correct_answers"] = [f"The stone is in {town}" for town in (right, alias)]
        rows.append({**row, "incorrect_answers": [f"The stone is in {town}" for town in (wrong, worse)]})
    return rows


def requests() -> list[dict[str, Any]]:
    """IFEval's: instructions of five kinds in turn, two in each request."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("punctuation:no_comma", {}),
        ("detectable_format:title", {}),
        ("length_constraints:number_words", {"num_words": 40, "relation": "at least"}),
        ("detectable_format:number_bullet_lists", {"num_bullets": 3}),
        ("startend:quotation", {}),
    ]
    chosen = [(kinds[n % 5], kinds[(n + 1 + n // 5 % 4) % 5]) for n in range(ROWS)]
    return [
        {
            "key": n,
            "prompt": f"Write about {TOWNS[n % len(TOWNS)]}: {one[0]} and {two[0]}.",
            "instruction_id_list": [one[0], two[0]],
            "kwargs": [one[1], two[1]],
        }
        for n, (one, two) in enumerate(chosen)
    ]


def bookings(number: int) -> list[dict[str, Any]]:
    """BFCL's: so many calls for each question; with none, no function helps."""
    rows = []
    for n in range(ROWS):
        wanted = [(TOWNS[(n + k) % len(TOWNS)], 1 + (n + k) % 9) for k in range(number)]
        asked = " and ".join(f"{seats} seats to {town}" for town, seats in wanted) or "the weather"
        calls = [{"travel.book": {"town": [town], "seats": [seats]}} for town, seats in wanted]
        question = [[{"role": "user", "content": f"Please: {asked}, for guest {n}."}]]
        row = {"id": f"{'parallel' if number else 'irrelevance'}_{n}", "question": question, "function": [OFFERED]}
        rows.append({**row, "ground_truth": calls} if calls else row)
    return rows


SETS: Mapping[str, tuple[str, Callable[[], list[dict[str, Any]]], dict[str, Any]]] = {
    "`gsm8k`": ("gsm8k", gsm8k, {}),
    "`gsm8k` env.tools=false": ("gsm8k", gsm8k, {"tools": False}),
    "`questions`, as MATH": ("questions", math, {}),
    "`questions`, as Natural Questions": ("questions", words, {}),
    "`questions`, as MMLU (4 choices)": ("questions", choices, {}),
    "`questions`, as BoolQ (yes or no)": ("questions", verdicts, {}),
    "`questions`, as TruthfulQA": ("questions", myths, {}),
    "`instructions`, as IFEval": ("instructions", requests, {}),
    "`function_calls`, one call": ("function_calls", partial(bookings, 1), {}),
    "`function_calls`, two calls": ("function_calls", partial(bookings, 2), {}),
    "`function_calls`, none helps": ("function_calls", partial(bookings, 0), {}),
}
"""By what the table calls it: the environment, the rows of its file, and options."""


def written(name: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Write a set's file into a folder, and return the environment and its options."""
    env, rows, options = SETS[name]
    file = folder / f"{list(SETS).index(name)}.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows()), encoding="utf-8")
    both = {"eval_path": str(file)} if env in ("gsm8k", "questions") else {}
    return env, {"path": str(file), **both, **options}


def search_r1(folder: Path) -> Callable[[], SearchR1]:
    """Search-R1's environment over paragraphs and questions in SQuAD's format, searched in this process."""
    places = [f"{town} {n}" for n in range(4) for town in TOWNS]
    facts = [(place, f"{TOWNS[n * 7 % len(TOWNS)]} {TOWNS[n * 5 // 6 % len(TOWNS)]}") for n, place in enumerate(places)]
    paragraphs = [
        {
            "context": f"The mayor of {place} was born in {born}.",
            "qas": [{"id": place, "question": f"Where was the mayor of {place} born?", "answers": [{"text": born}]}],
        }
        for place, born in facts
    ]
    squad = {"data": [{"title": f"Towns_{n}", "paragraphs": paragraphs[n::12]} for n in range(12)]}
    (folder / "squad.json").write_text(json.dumps(squad), encoding="utf-8")
    prepare_squad(folder / "squad.json", folder)
    build(folder / "corpus.jsonl", folder / "bm25")
    index: Any = InProcess(folder)

    def make() -> SearchR1:
        env = SearchR1(data=folder)
        env.client = lambda: index  # type: ignore[method-assign]
        return env

    return make
