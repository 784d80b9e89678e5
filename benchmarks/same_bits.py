"""Hashes of what runs draw and learn, to hold two versions of the code against each other, bit for bit.

    python -m benchmarks.same_bits record before.json         # in one checkout
    python -m benchmarks.same_bits record after.json          # in another, on the same machine
    python -m benchmarks.same_bits compare before.json after.json

Ten steps each of `calculator` (three seeds, on both trainers), `castle` and `gsm8k`, on the tiny model after a
warm start. Recorded for each step: the drawn tokens with their log-probabilities and versions, the loss and the norm
of the gradient; and the last checkpoint's weights. Code that numbers its groups by step is given the ids and seeds of
the code that numbers them through the run, so that both draw the same. The hashes hold on one kind of CPU only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
from safetensors.numpy import load_file

from agentrl.rollout.episodes import groups as rollout_groups
from agentrl.sessions.store.store import Store
from agentrl.train.driver import api
from agentrl.types import Group, Session, Task

STEPS = 10
GROUPS, SAMPLES = 4, 4
SETTINGS: dict[str, Any] = {
    **{"steps": STEPS, "checkpoint_every": STEPS, "warm_start.steps": 120},
    **{"rollout.groups_per_step": GROUPS, "rollout.group_size": SAMPLES, "eval.tasks": 2, "eval.n": 1},
}
PROBLEMS = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_train_2000.jsonl"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"calculator, seed {seed}, torch": ("calculator", {"seed": seed}) for seed in range(3)},
    "castle, torch": ("castle", {}),
    "gsm8k, torch": ("gsm8k", {"env.path": str(PROBLEMS), "rollout.turn_tokens": 48}),
    **{f"calculator, seed {n}, megatron": ("calculator", {"seed": n, "trainer": "megatron"}) for n in range(3)},
}


def number_groups_through_the_run() -> None:
    """Where groups are numbered within a step, give them the ids and seeds of a stream of groups."""
    if hasattr(rollout_groups, "group_seed"):
        return
    module: Any = rollout_groups
    derive = module.derive

    def numbered(id_: str, task: Task) -> Group:
        phase, step, place = id_.split("-")
        return Group(f"{phase}-{int(step) * GROUPS + int(place)}.0", task)

    module.Group = numbered
    module.derive = lambda seed, id_: derive(seed, id_.rpartition(".")[0])


def record(case: str) -> dict[str, Any]:
    """Run a case and hash what came of it."""
    env, settings = CASES[case]
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        api.train(env, run_dir=str(run), **(SETTINGS | settings))
        rows = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
        with Store(run / "sessions.db") as store:
            drawn = {step: digest(session_bytes(store, step)) for step in sorted(steps(store))}
        weights = load_file(run / "checkpoints" / f"step-{STEPS:06d}" / "model.safetensors")
        return {
            "sessions": drawn,
            "losses": [[row["loss"], row.get("grad_norm")] for row in rows],
            "weights": digest(name.encode() + weights[name].tobytes() for name in sorted(weights)),
        }


def steps(store: Store) -> set[int]:
    """The steps that sessions were drawn for."""
    return {place(session)[1] for session in store.sessions() if place(session)[0] == "train"}


def place(session: Session) -> tuple[str, int]:
    """What a session was played for, and the step that it began in."""
    known: Any = session if hasattr(session, "phase") else SimpleNamespace(**session.info)
    return known.phase, known.step


def session_bytes(store: Store, step: int) -> Iterator[bytes]:
    """A step's sessions, token for token, without timings."""
    for session in store.sessions(step=step):
        if place(session)[0] != "train":
            continue
        head = [session.id, session.group, session.sample, session.seed, session.reward, session.status.value]
        yield orjson.dumps(head)
        for node in session.nodes:
            versions = [[span.version, span.start, span.end] for span in node.versions]
            yield orjson.dumps([node.parent, node.token_ids, node.trainable, node.logprobs, versions, node.reward])


def digest(pieces: Iterator[bytes]) -> str:
    """A hash of all pieces, in order."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(len(piece).to_bytes(8, "big") + piece)
    return found.hexdigest()


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs, a line for each case and part, with the first step where it does."""
    told = []
    for case in sorted(before.keys() | after.keys()):
        one, two = before.get(case), after.get(case)
        if one is None or two is None:
            told.append(f"{case}: recorded on one side only")
            continue
        parts = (part for part in one if one[part] != two[part])
        told += [f"{case}: {part} differ{first_difference(one[part], two[part])}" for part in parts]
    return told


def first_difference(one: Any, two: Any) -> str:
    """Where two records by step differ first, in words; '' for records of the whole run."""
    if isinstance(one, str):
        return ""
    keys = one if isinstance(one, dict) else range(min(len(one), len(two)))
    found = next((key for key in keys if one[key] != (two.get(key) if isinstance(two, dict) else two[key])), None)
    return "" if found is None else f", first at step {found}"


def main() -> None:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("file", type=Path)
    recorder.add_argument("--case", action="append", choices=list(CASES))
    comparer = commands.add_parser("compare")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    words = parser.parse_args()
    if words.command == "compare":
        told = compare(*(json.loads(file.read_text()) for file in (words.before, words.after)))
        print("\n".join(told) or "the same, bit for bit")
        sys.exit(bool(told))
    number_groups_through_the_run()
    found = {case: record(case) for case in words.case or CASES}
    words.file.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
