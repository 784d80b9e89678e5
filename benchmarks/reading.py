"""What a small model reads out of a passage that has the answer: the bound of what a search can bring it.

    python -m benchmarks.reading MODEL_FOLDER DATA_FOLDER SQUAD.json [examples before the question, 2 by default]

`DATA_FOLDER` is that of `agentrl search-r1 prepare SQUAD.json`. Each held-out question is put behind the 40 words
around its answer, in its own paragraph: no search can do better. The model goes on, decoded greedily, to the end of the
line, and is scored as Search-R1 scores (exact match; and whether the answer is in what it said).
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.envs.builtin.search_r1.scoring import contains, exact_match
from agentrl.rollout.stream.statistics import interval
from benchmarks.machine import machine

WORDS = 40
MAX_TOKENS = 16


def around(text: str, answer: str) -> str:
    """The words of a text around an answer, or its first ones where it has none."""
    words, place = text.split(), max(text.find(answer), 0)
    first = max(len(text[:place].split()) - WORDS // 2, 0)
    return " ".join(words[first : first + WORDS])


def rows(file: Path, contexts: dict[str, str]) -> list[dict[str, Any]]:
    """SQuAD's questions of a file of prepared ones, each with its passage."""
    found = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    passages = ((row, contexts[row["id"]]) for row in found if row["id"] in contexts)
    return [row | {"passage": around(context, row["golden_answers"][0])} for row, context in passages]


def shown(row: dict[str, Any]) -> str:
    return f"Passage: {row['passage']}\nQuestion: {row['question']}\nAnswer:"


def main(model_folder: str, data: str, squad: str, examples: str = "2") -> None:
    print(machine())
    contexts = {
        question["id"]: paragraph["context"]
        for article in json.loads(Path(squad).read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    before = random.Random(0).sample(rows(Path(data) / "train.jsonl", contexts), int(examples))
    start = "".join(f"{shown(row)} {row['golden_answers'][0]}\n\n" for row in before)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    held_out = rows(Path(data) / "eval.jsonl", contexts)
    scores: dict[str, list[float]] = {"exact match": [], "answer contained": []}
    for row in held_out:
        given = tokenizer(start + shown(row), return_tensors="pt")
        made = model.generate(**given, max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=tokenizer.eos_token_id)
        answer = tokenizer.decode(made[0, given.input_ids.shape[1] :], skip_special_tokens=True).partition("\n")[0]
        scores["exact match"].append(exact_match(answer, row["golden_answers"]))
        scores["answer contained"].append(float(contains(answer, row["golden_answers"])))
    for name, found in scores.items():
        low, high = interval(found)
        print(f"{name}: {fmean(found):.3f} [{low:.3f}, {high:.3f}], {len(found)} questions")


if __name__ == "__main__":
    main(*sys.argv[1:])
