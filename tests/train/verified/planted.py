"""Kinds of changes behind a run's back: how each is planted, and in which words a verification has to name it.

Whoever plants them knows manifests and checksums, and makes them fit what was changed; no seal is made to fit.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import torch
import yaml

from agentrl.sessions.store.store import Store
from agentrl.train.record import manifest
from agentrl.types import Session, Task

Plant = Callable[[Path], object]
Change = Callable[[dict[str, Any]], object]
EVALUATED = "eval1-0.0-0"


def sealed_again(folder: Path) -> None:
    """Make a folder's manifest fit its files, as whoever wrote them would."""
    about = {key: value for key, value in json.loads((folder / manifest.NAME).read_text()).items() if key == "seal"}
    (folder / manifest.NAME).unlink()
    manifest.write(folder, about)


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:06d}"


def in_checkpoint(change: Callable[[Path], object]) -> Plant:
    """Change the last checkpoint, and let its manifest fit."""

    def plant(run: Path) -> None:
        change(checkpoint(run, 3))
        sealed_again(checkpoint(run, 3))

    return plant


def in_model(change: Callable[[Path], object]) -> Plant:
    def plant(run: Path) -> None:
        change(run / "model")
        sealed_again(run / "model")

    return plant


def from_the_checkpoint_before(name: str) -> Callable[[Path], object]:
    """Replace a file by that of step 2."""

    def copy(folder: Path) -> None:
        (folder / name).unlink()
        shutil.copyfile(checkpoint(folder.parents[1], 2) / name, folder / name)

    return copy


def swap_checkpoints(run: Path) -> None:
    checkpoint(run, 2).rename(run / "aside")
    checkpoint(run, 3).rename(checkpoint(run, 2))
    (run / "aside").rename(checkpoint(run, 3))


def in_trainer(change: Callable[[Any], object]) -> Plant:
    def rewrite(folder: Path) -> None:
        state = torch.load(folder / "trainer", weights_only=False)
        change(state)
        (folder / "trainer").unlink()
        torch.save(state, folder / "trainer")

    return in_checkpoint(rewrite)


def zero_moments(value: Any) -> None:
    """Set all of Adam's moments to zero."""
    for key, below in value.items() if isinstance(value, dict) else enumerate(value):
        if key in ("exp_avg", "exp_avg_sq"):
            below.zero_()
        elif isinstance(below, dict | list):
            zero_moments(below)


def in_json(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        whole = orjson.loads((folder / name).read_bytes())
        change(whole)
        (folder / name).unlink()
        (folder / name).write_bytes(orjson.dumps(whole))

    return rewrite


def text_changed(name: str) -> Callable[[Path], None]:
    """Add a space to a file's end, in a file of its own."""

    def rewrite(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(data + b" ")

    return rewrite


def in_lines(name: str, change: Change) -> Plant:
    """Change a file's lines: a list that `change` returns takes the line's place."""

    def rewrite(run: Path) -> None:
        kept: list[dict[str, Any]] = []
        for line in (run / name).read_bytes().splitlines():
            row = orjson.loads(line)
            others = change(row)
            kept += others if isinstance(others, list) else [row]
        (run / name).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in kept))

    return rewrite


def of_step(
    step: int, change: Callable[[dict[str, Any]], object], kind: str = ""
) -> Callable[[dict[str, Any]], object]:
    return lambda row: change(row) if row["step"] == step and (not kind or kind in row) else None


def row(**values: float) -> Plant:
    """Change numbers of the row of step 2."""
    return in_lines("metrics.jsonl", of_step(2, lambda found: found.update(values)))


def in_session(name: str, change: Callable[[Session], object]) -> Plant:
    """Change a session, with checksums that fit; `change` may return another one."""

    def rewrite(run: Path) -> None:
        with Store(run / "sessions.db") as store:
            session = store.load(name)
            other = change(session)
            store.save(other if isinstance(other, Session) else session, replace=True)

    return rewrite


def without_sessions(**filters: Any) -> Plant:
    def delete(run: Path) -> None:
        with Store(run / "sessions.db") as store:
            for name in store.ids(**filters):
                store.delete(name)

    return delete


def settings(change: Change, *, also_yaml: bool = True) -> Plant:
    """Change settings of the last process, in both files that have them."""

    def plant(run: Path) -> None:
        in_lines("starts.jsonl", of_step(2, lambda line: change(line["settings"])))(run)
        if also_yaml:
            in_yaml(change)(run)

    return plant


def in_yaml(change: Change) -> Plant:
    def plant(run: Path) -> None:
        tree = yaml.safe_load((run / "config.yaml").read_text())
        change(tree)
        (run / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))

    return plant


def rate(tree: dict[str, Any]) -> None:
    tree["algo"]["lr"] = 5e-4


def seed(tree: dict[str, Any]) -> None:
    tree["seed"] = 7


def say(text: str, node: int) -> Callable[[Session], None]:
    def change(session: Session) -> None:
        message = session.nodes[node].message
        session.nodes[node].message = message.model_copy(update={"content": text})

    return change


def with_task_data(session: Session) -> None:
    session.task = Task(id=session.task.id, data={**session.task.data, "start": 99})


def rescored(session: Session) -> None:
    session.reward = 1.0
    session.rewards = {"points": 1.0}


def other_sampling(session: Session) -> None:
    node = next(node for node in session.nodes if node.sampling is not None)
    assert node.sampling is not None
    node.sampling = replace(node.sampling, top_k=5)


def set_of(session: Session, **values: Any) -> None:
    for name, value in values.items():
        setattr(session, name, value)


def added_session(run: Path) -> None:
    with Store(run / "sessions.db") as store:
        session = store.load(EVALUATED)
        session.id, session.sample = "eval1-0.0-9", 9
        store.save(session)


def checksums(run: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        line["published"]["checksums"] = dict.fromkeys(line["published"]["checksums"], "00" * 16)

    in_lines("provenance.jsonl", of_step(1, change, "published"))(run)


def sql(file: Path, statement: str) -> None:
    """Change a database behind its back."""
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(statement)


def removed(name: str) -> Plant:
    return lambda run: (run / name).unlink()


def code(change: Callable[[Path], object]) -> Plant:
    return lambda run: change(next((run / "code").glob("*/own.py")))


def seal_lines(change: Callable[[list[bytes]], list[bytes]]) -> Plant:
    def plant(run: Path) -> None:
        lines = (run / "seals.jsonl").read_bytes().splitlines(keepends=True)
        (run / "seals.jsonl").write_bytes(b"".join(change(lines)))

    return plant


def up_to_the_last_row(lines: list[bytes]) -> list[bytes]:
    """Without the last row's seal, and those after it."""
    last = max(number for number, line in enumerate(lines) if "metrics.jsonl" in orjson.loads(line).get("lines", {}))
    return lines[:last]


def unsealed(run: Path) -> None:
    """Nothing but a checkpoint's manifest says any more that there were seals."""
    removed("seals.jsonl")(run)
    in_lines("starts.jsonl", lambda line: line.pop("sealed"))(run)


LAST = "checkpoints/step-000003: "
PLANTED: dict[str, tuple[Plant, str]] = {
    # ------------------------------------------------------------------------------- checkpoints
    "checkpoints swapped": (swap_checkpoints, LAST + r"its model or run.json .* step 3; it is that of step-000002"),
    "checkpoint of another step": (
        lambda run: shutil.copytree(checkpoint(run, 2), checkpoint(run, 1)),
        "checkpoints/step-000001: run.json is the state after step 2",
    ),
    "checkpoint of a step that was not taken": (
        lambda run: shutil.copytree(checkpoint(run, 3), checkpoint(run, 9)),
        "checkpoints/step-000009: the run has taken 3 steps",
    ),
    "weights of another checkpoint": (
        in_checkpoint(from_the_checkpoint_before("model.safetensors")),
        LAST + "its model or run.json is not what was written after step 3",
    ),
    "state of another checkpoint": (
        in_checkpoint(from_the_checkpoint_before("run.json")),
        LAST + "run.json is the state after step 2",
    ),
    "optimizer of another checkpoint": (
        in_checkpoint(from_the_checkpoint_before("trainer")),
        LAST + r"its trainer \(optimizer, schedule\) is not what was written .*; it is that of step-000002",
    ),
    "moments zeroed": (in_trainer(zero_moments), LAST + "its trainer .* is not what was written after step 3"),
    "cursor ahead": (
        in_checkpoint(in_json("run.json", lambda state: state["stream"].update(next=9))),
        LAST + "its model or run.json is not what was written",
    ),
    "cursor behind": (
        in_checkpoint(in_json("run.json", lambda state: state["stream"].update(next=3))),
        "group 5 was begun before step-000003, which would begin 3 next",
    ),
    "algorithm's state changed": (
        in_checkpoint(in_json("run.json", lambda state: state["algorithm"]["adaptive"].update(kl_coef=0.5))),
        LAST + "its model or run.json is not what was written",
    ),
    "chat template of a checkpoint": (
        in_checkpoint(text_changed("chat_template.jinja")),
        LAST + "its model or run.json",
    ),
    "file put into a checkpoint": (
        lambda run: (checkpoint(run, 3) / "adapter.safetensors").write_bytes(b"x"),
        LAST + "adapter.safetensors is there, and the manifest does not have it",
    ),
    "manifest of a checkpoint removed": (
        lambda run: (checkpoint(run, 3) / manifest.NAME).unlink(),
        LAST + "manifest.json is missing",
    ),
    # ------------------------------------------------------------------------------------- model
    "model replaced by a checkpoint": (
        lambda run: [shutil.rmtree(run / "model"), shutil.copytree(checkpoint(run, 3), run / "model")],
        "model/: its files are not those of the model that the run began with",
    ),
    "weights of the model": (in_model(text_changed("model.safetensors")), "model/: its files are not those"),
    "tokenizer of the model": (in_model(text_changed("tokenizer.json")), "model/: its files are not those"),
    "file put into the model": (
        lambda run: (run / "model" / "more.safetensors").write_bytes(b"x"),
        "model/: more.safetensors is there, and the manifest does not have it",
    ),
    "model removed": (lambda run: shutil.rmtree(run / "model"), "model: manifest.json is missing"),
    # ------------------------------------------------------------------------------- evaluations
    "evaluation deleted": (
        without_sessions(phase="eval", step=1),
        "step 1, session eval1-0.0-0: is no longer in the store",
    ),
    "session of an evaluation deleted": (
        without_sessions(id=EVALUATED),
        f"step 1, session {EVALUATED}: is no longer in the store",
    ),
    "evaluation rescored": (
        in_session(EVALUATED, rescored),
        f"step 1, session {EVALUATED}: its status, seed, rewards or counts: not as the session ended",
    ),
    "evaluation and its row rescored": (
        lambda run: [in_session(EVALUATED, rescored)(run), row()(run)],
        "step 1, eval/mean: logged .*, and the sessions give",
    ),
    "evaluation before training rescored": (in_session("eval0-0.0-0", rescored), "step 0, session eval0-0.0-0"),
    "session put into an evaluation": (
        added_session,
        "evaluation after step 1, session eval1-0.0-9: is none of those that were played",
    ),
    "text of an evaluation": (in_session(EVALUATED, say("42", 1)), f"{EVALUATED}: the text of its messages"),
    # ----------------------------------------------------------------------------------- metrics
    "loss": (row(loss=0.5), "metrics.jsonl, step 2: line 2 is not what was written"),
    "norm of the gradient": (row(grad_norm=0.25), "metrics.jsonl, step 2: line 2 is not what was written"),
    "learning rate": (row(lr=1e-5), "metrics.jsonl, step 2: line 2 is not what was written"),
    "learning rate by the schedule": (row(lr=1e-5), "step 2, lr: logged 1e-05, and algo.schedule=constant gives 0.001"),
    "time of a step": (row(**{"time/step": 0.5}), "metrics.jsonl, step 2: line 2"),
    "mean of an evaluation": (row(**{"eval/mean": 1.0}), "step 2: line 2 is not what was written"),
    "last row removed": (
        in_lines("metrics.jsonl", of_step(3, lambda found: [])),
        "checkpoints/step-000003: the run has taken 2 steps",
    ),
    "row added": (
        in_lines("metrics.jsonl", of_step(3, lambda found: [found, {**found, "step": 4, "version": 4.0}])),
        "metrics.jsonl, step 4: line 4 has no seal",
    ),
    # ---------------------------------------------------------------------------------- settings
    "settings in one file": (in_yaml(rate), "config.yaml: algo.lr is 0.0005, and was 0.001"),
    "settings in the other file": (settings(rate, also_yaml=False), "starts.jsonl, step 2: line 2 is not what was"),
    "settings in both files": (settings(rate), "starts.jsonl, step 2: line 2 is not what was written"),
    "seed in both files": (settings(seed), "step 3, session train-4.0-0: it has the seed .*, and the run's gives"),
    "settings of an earlier process": (
        in_lines("starts.jsonl", of_step(0, lambda line: rate(line["settings"]))),
        "starts.jsonl, step 0: line 1 is not what was written",
    ),
    "process added": (
        in_lines("starts.jsonl", of_step(2, lambda line: [line, line])),
        "starts.jsonl, step 2: line 3 has no seal",
    ),
    "process removed": (in_lines("starts.jsonl", of_step(0, lambda line: [])), "starts.jsonl, step 0: line 1 is not"),
    "identity of the data": (
        in_lines("starts.jsonl", lambda line: line["data"].clear()),
        "starts.jsonl, step 0: line 1 is not what was written",
    ),
    "machine": (in_lines("starts.jsonl", lambda line: line.update(torch="9")), "starts.jsonl, step 0: line 1"),
    "copy of the environment's file": (code(lambda file: file.write_text("x = 1\n")), "code: the copy of .*own.py"),
    "no copy of the environment's file": (code(lambda file: file.unlink()), "code: the copy of .*own.py .*missing"),
    # ---------------------------------------------------------------------------------- sessions
    "text of a turn": (
        in_session("train-0.0-0", say("42", 1)),
        "session train-0.0-0: the text of its messages",
    ),
    "text of a turn, by its tokens": (
        in_session("train-0.0-0", say("zebra", 1)),
        "session train-0.0-0, message 1: its text has 'zebra', and its tokens don't",
    ),
    "text of a prompt, by its tokens": (
        in_session("train-0.0-0", say("zebra", 0)),
        "session train-0.0-0, message 0: its text has 'zebra', and its tokens don't",
    ),
    "text of a prompt": (in_session("train-0.0-0", say("1?", 0)), "session train-0.0-0: the text of its messages"),
    "data of a task": (in_session("train-0.0-0", with_task_data), "step 1, session train-0.0-0: its task: not as"),
    "seed of a session": (
        in_session("train-0.0-0", lambda session: set_of(session, seed=4)),
        "step 1, session train-0.0-0: it has the seed 4, and the run's gives",
    ),
    "counts of a session": (
        in_session("train-0.0-0", lambda session: session.counters.update(tool_errors=3)),
        "step 1, session train-0.0-0: its status, seed, rewards or counts",
    ),
    "times of a session": (
        in_session("train-0.0-0", lambda session: set_of(session, ended=1.0)),
        "step 1, session train-0.0-0: its status, seed, rewards or counts",
    ),
    "phase of a session": (
        in_session("train-0.0-0", lambda session: set_of(session, phase="demo")),
        "step 1, session train-0.0-0: its status, seed",
    ),
    "sampling of a turn": (
        in_session("train-0.0-0", other_sampling),
        "session train-0.0-0: its tokens, log-prob",
    ),
    "engine of a turn": (
        in_session("train-0.0-0", lambda session: set_of(session.nodes[1], engines=("other",))),
        "step 1, session train-0.0-0: its tokens, log-probabilities or versions",
    ),
    "trained session deleted": (without_sessions(id="train-0.0-0"), "step 1, session train-0.0-0: is no longer in"),
    # ------------------------------------------------------------------------ ledger and provenance
    "task in the ledger": (
        in_lines("groups.jsonl", of_step(2, lambda entry: entry.update(task="train-99"))),
        "groups.jsonl, step 2: line 3 or one up to 4 is not what was written",
    ),
    "choice in the ledger": (
        in_lines("groups.jsonl", of_step(2, lambda entry: entry.update(choice=entry["choice"] + 50))),
        "groups.jsonl, step 2: line 3 or one up to 4 is not what was written",
    ),
    "beginning in the ledger": (
        in_lines("groups.jsonl", of_step(2, lambda entry: entry.update(begun=0))),
        "groups.jsonl, step 2: line 3 or one up to 4",
    ),
    "published checksum": (checksums, "provenance.jsonl, step 1: line 2 or one up to 3 is not what was written"),
    "result of a probe": (
        in_lines("provenance.jsonl", of_step(1, lambda line: line["published"].update(probe=1e-7), "published")),
        "provenance.jsonl, step 1: line 2 or one up to 3",
    ),
    "proof of a publication": (
        in_lines("provenance.jsonl", of_step(1, lambda line: line["published"].update(probe_bound=9.0), "published")),
        "provenance.jsonl, step 1: line 2 or one up to 3",
    ),
    "publication added": (
        in_lines("provenance.jsonl", of_step(3, lambda line: [line, line], "published")),
        "provenance.jsonl, step 3: line 9 has no seal",
    ),
    # -------------------------------------------------------------------------------- other files
    "state of the stream": (
        in_json("stream.json", lambda state: state["stream"].update(next=9)),
        "stream.json, step 3: is not what was written",
    ),
    "trainer's log-probabilities": (
        lambda run: sql(run / "logprobs.db", "UPDATE logprobs SET version = 9 WHERE step = 2"),
        "logprobs.db, step 2: is not what was written",
    ),
    "trainer's log-probabilities removed": (removed("logprobs.db"), "logprobs.db, step 1: missing"),
    "losses invented": (lambda run: (run / "losses.json").write_text("[1]"), "losses.json: is not what"),
    "format removed": (removed("format.json"), "format.json: missing"),
    # -------------------------------------------------------------------------------------- seals
    "seals removed": (removed("seals.jsonl"), "seals.jsonl: missing, and step-000002 says that the run has it"),
    "seals removed, and what says so": (unsealed, "seals.jsonl: missing, and step-000002 says"),
    "seal removed": (seal_lines(lambda lines: lines[:4] + lines[5:]), "seals.jsonl, line 5, .*does not follow"),
    "seal changed": (
        seal_lines(lambda lines: [line.replace(b'"eval1-0.0-0":"', b'"eval1-0.0-0":"0') for line in lines]),
        "seals.jsonl, line .*does not follow from the line before",
    ),
    "last seals removed": (seal_lines(up_to_the_last_row), "metrics.jsonl, step 3: line 3 has no seal"),
    "seals damaged": (seal_lines(lambda lines: [b"{\n", *lines]), "seals.jsonl.*line 1 is damaged"),
}
"""By name how each is planted, and what a fault has to say."""


def in_result(change: Callable[[Any], object]) -> Plant:
    return in_json("result.json", change)


IN_EVALUATIONS: dict[str, tuple[Plant, str]] = {
    "mean": (
        in_result(lambda found: found.update(mean=0.99)),
        "result.json, mean: is 0.99, and its tasks",
    ),
    "tokens": (in_result(lambda found: found["usage"].update(completion=1)), "result.json: is not what the evaluation"),
    "score of a task": (
        in_result(lambda found: found["scores"][0].update(scores=[0.77])),
        "result.json, task eval-.*: it was measured with the scores .0.77., and no stored session",
    ),
    "session rescored": (in_session("eval-0.0-0", rescored), "session eval-0.0-0: its status, seed, rewards or counts"),
    "session deleted": (without_sessions(id="eval-0.0-0"), "session eval-0.0-0: is no longer in the store"),
    "settings": (in_yaml(seed), "config.yaml: is not what the evaluation wrote"),
    "data": (in_json("data.json", lambda found: found.clear()), "data.json: is not what the evaluation wrote"),
    "result removed": (removed("data.json"), "data.json: missing"),
}
"""The same for an evaluation's folder."""
