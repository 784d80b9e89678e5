"""Kinds of runs of which nothing was changed behind their back: how each is made, in about a second."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from starlette.testclient import TestClient

import agentrl
from agentrl.models import tiny
from agentrl.overrides import spread
from agentrl.train.display.console import Display
from agentrl.train.driver.resuming import whole_checkpoints
from agentrl.train.evaluation.suite.parts import read_suite
from agentrl.train.evaluation.suite.play import run_suite
from agentrl.train.record.replay import ReplayConfig
from agentrl.train.record.replay import replay as play_again
from agentrl.train.record.verify import verify
from agentrl.viewer.app import create_app
from tests.records import digits
from tests.records.test_records import unpacked

SMALL: dict[str, Any] = {
    **{"metrics": [], "checkpoint_every": 1, "keep_checkpoints": 2, "algo.lr": 1e-3, "eval.tasks": 2, "steps": 1},
    **{"rollout.groups_per_step": 2, "rollout.group_size": 3, "rollout.turn_tokens": 6, "rollout.session_tokens": 96},
}
AGENT = """
async def play(task, client):
    for text in ("one?", "two?"):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
"""


class Watched(Display):
    """A display that shows nothing, and calls something after each step."""

    def __init__(self, after: Callable[[int], object] = lambda step: None) -> None:
        super().__init__(Console(file=StringIO(), width=500))
        self._after, self._steps = after, 0

    def step(self, metrics: Any, curve: float) -> None:
        """A step is done."""
        super().step(metrics, curve)
        self._steps += 1
        self._after(self._steps)


def make_base(folder: Path) -> Path:
    """A model of a few thousand random weights."""
    shape = tiny.TinyShape(vocab=263, layers=1, width=8, heads=2, kv_heads=1, mlp=8, context=128)
    return tiny.build(folder / "base", [], shape=shape)


def train(folder: Path, after: Callable[[int], object] = lambda step: None, **settings: Any) -> Path:
    """Train on `digits` in `folder`, or resume a run."""
    if "resume" in settings:
        return agentrl.train(display=Watched(after), **settings).path
    own = {"env": "digits", "model": str(folder / "base"), "run_dir": str(folder / "run"), **SMALL, **settings}
    return agentrl.train(own.pop("env"), display=Watched(after), **own).path


def make_origin(folder: Path) -> None:
    """The run that most kinds begin from: its environment is a file, it evaluates amid, and it was resumed once."""
    make_base(folder)
    code = Path(digits.__file__).read_text().replace('agentrl.register("digits", Digits)\n', "")
    (folder / "own.py").write_text(code)
    train(folder, **{"env": f"{folder / 'own.py'}:Digits", "eval.every": 1, "steps": 2, "record_logprobs": True})
    train(folder, resume=str(folder / "run"), steps=3)
    evaluated("measured")(folder)


def steps(run: Path) -> int:
    """How many rows a run has."""
    return len((run / "metrics.jsonl").read_bytes().splitlines())


def cut(run: Path, name: str, lines: int = 1) -> None:
    """Remove a file's last lines, as if the process had been killed before it wrote them."""
    kept = (run / name).read_bytes().splitlines(keepends=True)
    (run / name).write_bytes(b"".join(kept[:-lines]))


def trained(**settings: Any) -> Callable[[Path], Path]:
    """A kind that is a run with these settings."""
    return lambda folder: train(folder, **settings, run_dir=str(folder / "other"))


# --------------------------------------------------------------- what happens to a run after its end


def as_it_ended(folder: Path) -> Path:
    return folder / "run"


def moved(folder: Path) -> Path:
    return Path(shutil.move(folder / "run", folder / "another name"))


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(folder / "run", folder / "copy"))


def viewed(folder: Path) -> Path:
    page = TestClient(create_app(folder), base_url="http://localhost")
    assert page.get("/api/run", params={"run": "run"}).status_code == 200
    assert page.get("/api/series", params={"run": "run"}).status_code == 200
    return folder / "run"


def pruned(folder: Path) -> Path:
    shutil.rmtree(whole_checkpoints(folder / "run")[0])
    return folder / "run"


def without_checkpoints(folder: Path) -> Path:
    shutil.rmtree(folder / "run" / "checkpoints")
    return folder / "run"


def without_pictures(folder: Path) -> Path:
    shutil.rmtree(folder / "run" / "transcripts")
    (folder / "run" / "learning_curve.png").unlink()
    return folder / "run"


def resumed_with_other_settings(folder: Path) -> Path:
    return train(folder, resume=str(folder / "run"), steps=4, **{"algo.lr": 2e-3, "rollout.group_size": 4})


def resumed_where_nothing_is_left(folder: Path) -> Path:
    return train(folder, resume=str(folder / "run"))


def lost_a_checkpoint(folder: Path) -> Path:
    shutil.rmtree(whole_checkpoints(folder / "run")[-1])
    return train(folder, resume=str(folder / "run"))


def got_its_model_replaced(folder: Path) -> Path:
    (folder / "run" / "model" / "config.json").unlink()
    return train(folder, resume=str(folder / "run"), steps=4)


def replayed(folder: Path) -> Path:
    asyncio.run(play_again(folder / "run", "train-0.0-0", ReplayConfig(turn=1), lambda line: None, trust=True))
    return folder / "run"


def run_again(folder: Path) -> Path:
    """A run that was extended: step 1 was its last one, after which there was no evaluation amid."""
    shutil.rmtree(folder / "run")
    train(folder, **{"eval.every": 1})
    train(folder, resume=str(folder / "run"), steps=2)
    return agentrl.train(rerun=str(folder / "run"), run_dir=str(folder / "again"), display=Watched()).path


# ------------------------------------------------------------------------------------ what ends one


def killed_before_a_row(folder: Path) -> Path:
    run = folder / "run"
    lines = (run / "seals.jsonl").read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "metrics.jsonl" in orjson.loads(line).get("lines", {}))
    cut(run, "seals.jsonl", len(lines) - last - 1)
    cut(run, "metrics.jsonl")
    shutil.rmtree(whole_checkpoints(run)[-1])
    return run


def killed_before_a_row_and_resumed(folder: Path) -> Path:
    return train(folder, resume=str(killed_before_a_row(folder)))


def killed_before_a_checkpoint_had_its_name(folder: Path) -> Path:
    run = folder / "run"
    lines = (run / "seals.jsonl").read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "checkpoint" in orjson.loads(line))
    cut(run, "seals.jsonl", len(lines) - last - 1)
    folder = whole_checkpoints(run)[-1]
    folder.rename(folder.with_name(f".{folder.name}.partial"))
    return run


def killed_as_it_resumed(folder: Path) -> Path:
    """The start was sealed, and its settings were not written."""
    after = Path(shutil.copytree(folder / "run", folder / "after"))
    train(folder, resume=str(after), steps=4)
    lines = (after / "seals.jsonl").read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "start" in orjson.loads(line))
    (folder / "run" / "seals.jsonl").write_bytes(b"".join(lines[: last + 1]))
    (folder / "run" / "stream.json").unlink()
    return folder / "run"


def killed_as_it_resumed_and_resumed(folder: Path) -> Path:
    run = killed_as_it_resumed(folder)
    assert verify(run).passed, list(verify(run).lines())
    return train(folder, resume=str(run))


def stopped(folder: Path) -> Path:
    shutil.rmtree(folder / "run")
    display = Watched(lambda step: display.request_stop())
    own = {"model": str(folder / "base"), "run_dir": str(folder / "run"), **SMALL, "steps": 3}
    with suppress(BaseException):
        agentrl.train("digits", display=display, **own)
    assert steps(folder / "run") == 1
    return folder / "run"


def stopped_and_resumed(folder: Path) -> Path:
    run = stopped(folder)
    assert verify(run).passed, list(verify(run).lines())
    return train(folder, resume=str(run))


def still_training(folder: Path) -> Path:
    """It is verified after each of its steps, before and after the row is written."""
    shutil.rmtree(folder / "run")
    found = []

    def look(step: int) -> None:
        found.append(verify(folder / "run"))

    run = train(folder, look, steps=3)
    assert all(report.passed for report in found), [line for report in found for line in report.lines()]
    return run


def asynchronous(folder: Path) -> Path:
    """On two engines; a step whose checkpoint was lost was taken again."""
    shutil.rmtree(folder / "run")
    fleet = {"weights.mode": "abort", "fleet.engines": 2, "require_provenance": True}
    run = train(folder, **{"rollout.staleness": 1, "rollout.order": "ready", "steps": 3, **fleet})
    return resumed_after_a_loss(run)


def resumed_after_a_loss(run: Path) -> Path:
    shutil.rmtree(whole_checkpoints(run)[-1])
    return train(run.parent, resume=str(run), steps=4)


def given_another_trainer_amid(folder: Path) -> Path:
    shutil.rmtree(folder / "run")

    def ask(step: int) -> None:
        (folder / "run" / "trainer.yaml").write_text("threads: 1\n")

    return train(folder, ask, steps=2)


def resumed_from_a_copy_elsewhere(folder: Path) -> Path:
    shutil.rmtree(folder / "run")
    url = (folder / "bucket").as_uri()
    train(folder, checkpoint_url=url)
    return train(folder, resume=url, run_dir=str(folder / "elsewhere"), steps=2)


def of_an_older_agentrl(name: str) -> Callable[[Path], Path]:
    return lambda folder: unpacked("63b9345", name, folder)


def of_an_older_agentrl_and_resumed(folder: Path) -> Path:
    here = Path.cwd()
    try:
        os.chdir(folder)
        return train(folder, resume=str(unpacked("63b9345", "sync", folder)), steps=3)
    finally:
        os.chdir(here)


# -------------------------------------------------------------------------------------- evaluations


def evaluated(name: str, **settings: Any) -> Callable[[Path], Path]:
    def evaluate(folder: Path) -> Path:
        own = {"model": str(folder / "base"), "rollout.turn_tokens": 6, "eval.tasks": 2, **settings}
        if "policy" in own:
            own.pop("model"), own.pop("rollout.turn_tokens")
        agentrl.evaluate("digits", display=Watched(), run_dir=str(folder / name), **own)
        return folder / name

    return evaluate


def of_a_suite(folder: Path) -> Path:
    """Two parts with an environment each, of which each has a folder; both are verified."""
    (folder / "two.yaml").write_text("parts: {one: {env: digits}, sums: {env: calculator}}\n")
    words = {"policy": "noop", "eval.tasks": 2, "run_dir": str(folder / "suite")}
    asyncio.run(run_suite(read_suite(folder / "two.yaml", spread(words)), Watched()))
    parts = sorted(found.parent for found in (folder / "suite").glob("*/result.json"))
    assert len(parts) == 2
    assert verify(parts[0]).passed, list(verify(parts[0]).lines())
    return parts[1]


def by_an_agent_program(folder: Path) -> Path:
    (folder / "agent.py").write_text(AGENT)
    return train(folder, agent=f"{folder / 'agent.py'}:play", run_dir=str(folder / "other"))


KINDS: dict[str, Callable[[Path], Path]] = {
    "asynchronous": asynchronous,
    "a critic": trained(algo="ppo"),
    "forks": trained(**{"rollout.branch": "every", "rollout.branch.continuations": 1}),
    "groups trained twice": trained(**{"rollout.reuse": 0.5, "steps": 2}),
    "caches kept": trained(**{"weights.mode": "in_place", "rollout.staleness": 1}),
    "averaged weights": trained(**{"eval.weights": "averaged", "trainer.average_decay": 0.9, "eval.every": 1}),
    "a mixture": trained(**{"env": "mixture", "env.digits": 2, "env.again": {"name": "digits", "weight": 1}}),
    "a warm start": trained(
        **{"env": "calculator", "model": "tiny", "warm_start.steps": 1, "warm_start.demos": 2, "eval.tasks": 1}
    ),
    "an agent program": by_an_agent_program,
    **{
        each.__name__.replace("_", " "): each
        for each in (
            *(as_it_ended, moved, copied, viewed, pruned, without_checkpoints, without_pictures),
            *(resumed_with_other_settings, resumed_where_nothing_is_left, lost_a_checkpoint, got_its_model_replaced),
            *(replayed, run_again, killed_before_a_row, killed_before_a_row_and_resumed),
            *(killed_before_a_checkpoint_had_its_name, killed_as_it_resumed_and_resumed),
            *(stopped_and_resumed, still_training, given_another_trainer_amid),
            *(resumed_from_a_copy_elsewhere, of_an_older_agentrl_and_resumed),
        )
    },
    **{f"of an older agentrl: {name}": of_an_older_agentrl(name) for name in ("sync", "async", "fsdp", "eval")},
    "an evaluation": lambda folder: folder / "measured",
    "an evaluation of a script": evaluated("script", policy="noop"),
    "a suite": of_a_suite,
}
