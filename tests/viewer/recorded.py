"""Runs as a training process leaves them, written through the run's own store and trees in a second."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import yaml

from agentrl.attachments import support
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.record import provenance
from agentrl.train.record.provenance import Published, Trained
from agentrl.types import (
    Branch,
    FinishReason,
    FunctionCall,
    Message,
    Node,
    Sampling,
    Session,
    Status,
    Task,
    ToolCall,
    Turn,
    VersionSpan,
)

BEGAN = 1_795_445_628.0
TOOLS = [{"type": "function", "function": {"name": "calculator", "description": "One operation.", "parameters": {}}}]
HOSTILE = (
    "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
    "\x1b[31mred\x1b[0m \u202eevil\u202c [link](javascript:window.attacked=1)"
)


def write_run(folder: Path, *, steps: int = 30, groups: int = 2, lr: float = 1e-3, hostile: bool = True) -> Path:
    """A run of the calculator: four sessions a group, which learn; with a forked and a hostile session."""
    folder.mkdir(parents=True)
    rng = random.Random(f"{folder.name}{lr}")
    settings: dict[str, Any] = {
        "env": {"name": "calculator"},
        "model": {"name": "tiny"},
        "engine": {"name": "local"},
        "algo": {"name": "grpo", "lr": lr},
        "rewards": {"judge": {"api_key": "sk-planted-secret"}},
        "mismatch_bound": 0.01,
        "steps": steps,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    rows, ledger = [], []
    with Store(folder / "sessions.db") as store, store.batch():
        for step in range(steps):
            skill = 1 / (1 + math.exp(-(step - steps / 2) / 4 * lr / 1e-3))
            made = [session for g in range(groups) for session in _group(rng, step, step * groups + g, skill)]
            for session in made:
                store.save(session)
            rows.append(_row(step + 1, made, skill, rng))
            provenance.write(folder, step + 1, _proof(step, made))
            ledger += [_line(step + 1, number, step) for number in range(step * groups, (step + 1) * groups)]
        store.save(forked())
        if hostile:
            store.save(hostile_session())
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    (folder / "groups.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in ledger))
    return folder


def write_several(folder: Path) -> Path:
    """A run of the policies main and rival, and earlier versions of one as `past`, in two steps of two sessions."""
    write_run(folder, steps=2, groups=1, hostile=False)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["agents"] = {"right": "rival"}
    settings["policies"] = {"rival": {"algo": {"name": "magrpo"}}, "past": {"name": "past"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    rows = [orjson.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    rows = [row | {"rival/reward/mean": 0.25, "rival/loss": 0.5 * row["step"]} for row in rows]
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    with Store(folder / "sessions.db") as store:
        played = [("rival", 1.0, 0.0), ("rival", 0.5, 0.5), ("past/1", 0.75, 0.0)]
        for number, (other, own, reward) in enumerate(played):
            session = Session(f"match-{number}", Task(id="game"), phase="train", status=Status.COMPLETED, step=0)
            session.agent_rewards = {"left": own, "right": reward} if other == "rival" else {"left": own}
            session.partner_rewards = {} if other == "rival" else {"right": reward}
            for agent, policy in (("left", "main"), ("right", other)):
                asked = tree.add(session, None, Message(role="user", content="Play."), [5, 6], agent=agent)
                turn = spoken(session, asked, Message(role="assistant", content=f"I am {agent}."), 1)
                turn.agent, turn.policy = agent, policy
            store.save(session)
    return folder


def with_demonstrations(run: Path, count: int = 3) -> None:
    """What a warm start played, before the run's first session."""
    with Store(run / "sessions.db") as store:
        for number in range(count):
            name = f"demo-{number}.0-0"
            store.save(
                Session(name, Task(id="shown"), phase="demo", status=Status.COMPLETED, started=BEGAN - 90 + number)
            )


def _proof(step: int, made: list[Session]) -> list[Published | Trained]:
    mean = sum(session.reward or 0.0 for session in made) / len(made)
    credit = {session.id: {str(id_): [[(session.reward or 0.0) - mean, 0.25]] for id_ in (1, 3)} for session in made}
    scores = {session.id: session.reward for session in made}
    weights = Published(step, 0, "local", "dropped", {"local": f"{step:032x}"}, 1e-6)
    return [weights, Trained(step, scores, credit, "0" * 32, {})]


def _line(step: int, number: int, begun: int) -> dict[str, Any]:
    own = {"step": step, "group": f"train-{number}.0", "number": number, "attempt": 0, "task": f"task {number}"}
    return {**own, "choice": None, "begun": begun, "versions": [begun], "outcome": "trained", "hash": None}


def _row(step: int, made: list[Session], skill: float, rng: random.Random) -> dict[str, float]:
    ended = [session.status for session in made]
    return {
        "step": step,
        "reward/mean": sum(session.reward or 0.0 for session in made) / len(made),
        "reward/correct": skill,
        "reward/form": 0.5,
        "group/count": 2.0,
        "group/zero_variance": 2.0 if skill > 0.97 else 0.0,
        "sessions/turns": 3 + rng.random(),
        "sessions/trained_tokens": 30 + 10 * rng.random(),
        "status/truncated": ended.count(Status.TRUNCATED) / len(ended),
        "status/infra_error": ended.count(Status.INFRA_ERROR) / len(ended),
        "policy/entropy": 1.2 * (1 - skill) + 0.02,
        "mismatch/abs_mean": 1e-5 * (1 + rng.random()),
        "loss": rng.gauss(0, 0.1),
        "grad_norm": 1 + rng.random(),
        "time/rollout": 2 + rng.random(),
        "time/train": 1.0,
        "time/publish": 0.1,
        "time/step": 3.5 + rng.random(),
        "time/ended": BEGAN + 10 * (step - 1) + 4,
        "version": float(step),
        "throughput/tokens_per_s": 900 + 100 * rng.random(),
    }


def _group(rng: random.Random, step: int, number: int, skill: float) -> list[Session]:
    return [_session(rng, step, number, sample, skill) for sample in range(4)]


def _session(rng: random.Random, step: int, number: int, sample: int, skill: float) -> Session:
    a, b = 2 + number % 17, 3 + number % 7
    right = rng.random() < skill
    session = Session(
        id=f"train-{number}.0-{sample}",
        group=f"train-{number}.0",
        sample=sample,
        seed=number,
        phase="train",
        step=step,
        group_number=number,
        environment="calculator",
        task=Task(id=f"task {number}", data={"a": a, "b": b}),
        started=BEGAN + 10 * step,
        ended=BEGAN + 10 * step + 2 + rng.random(),
        timings={"generate": 1.4, "env": 0.1, "reward": 0.01, "total": 1.6},
    )
    asked = tree.add(session, None, Message(role="user", content=f"What is {a}*{b}?"), [5, 6, 7], tools=TOOLS)
    call = ToolCall(
        id="call_1", function=FunctionCall(name="calculator", arguments=json.dumps({"expression": f"{a}*{b}"}))
    )
    called = spoken(
        session, asked, Message(role="assistant", reasoning_content="I need the product.", tool_calls=[call]), step
    )
    answer = str(a * b) if right else "error: division by zero"
    told = tree.add(session, called.id, Message(role="tool", content=answer, tool_call_id="call_1"), [8, 9 + right])
    spoken(session, told, Message(role="assistant", content=str(a * b if right else a + b)), step)
    for number, node in enumerate(session.nodes):
        seconds = {"generation": 0.5, "first_token": 0.1} if node.sampled else {"env": 0.2}
        node.timings = {**seconds, "began": BEGAN + 10 * step + 0.5 * number}
        node.engines = (f"engine-{sample % 2}",) if node.sampled else ()
    session.rewards = {"correct": float(right), "form": 0.5}
    session.reward = float(right)
    session.counters = {"tool_calls": 1, "tool_errors": int(not right)}
    session.status = Status.COMPLETED
    if rng.random() < 0.05:
        session.status, session.error = Status.INFRA_ERROR, "EngineError: the engine closed the connection"
    elif not right and rng.random() < 0.4:
        session.status = Status.TRUNCATED
    return session


def spoken(session: Session, after: Node, message: Message, version: int, length: int = 6) -> Node:
    """A turn of the policy."""
    logps = tuple(-0.05 * (1 + (place * 7 + after.id) % 40) for place in range(length))
    drawn = Turn(tuple(range(10, 10 + length)), logps, (VersionSpan(version, 0, length),), FinishReason.STOP)
    return tree.add_turn(session, after.id, [1, 2], drawn, Sampling(), message)


def narrowed(session: Session, after: Node, message: Message, version: int) -> Node:
    """A turn drawn with top-p: from two tokens, one, and all of them; and for each reason one that is not trained."""
    codes = (support.SETS, support.ONE, support.FULL, support.OVERSIZE, support.OUTSIDE, support.UNKNOWN)
    ids_10_and_11 = bytes((0, 11, 1))
    attached = {support.NAME: support.Support(support.LOCAL, 64, (ids_10_and_11,), codes).pack()}
    spans = (VersionSpan(version, 0, len(codes)),)
    drawn = Turn(tuple(range(10, 16)), (-0.5,) * len(codes), spans, FinishReason.STOP, attachments=attached)
    return tree.add_turn(session, after.id, [1, 2], drawn, Sampling(top_p=0.9), message)


def replayed(
    recorded: Session, suffix: str, nodes: Sequence[Node], words: str = "", reward: float | None = None
) -> Session:
    """A replay as `agentrl replay` stores it: with these nodes, and a last turn where words are given."""
    session = replace(recorded, id=f"{recorded.id}{suffix}", phase="replay", nodes=list(nodes), status=Status.COMPLETED)
    if words:
        spoken(session, nodes[-1], Message(role="assistant", content=words), 1, length=5)
        session.reward = reward
    return session


def write_long(folder: Path, nodes: int) -> Path:
    """A run of one session, `nodes` messages long."""
    folder.mkdir()
    (folder / "config.yaml").write_text("env: {name: calculator}\n")
    session = Session("long", Task(id="long"), phase="train", step=0)
    for number in range(nodes):
        tree.add(session, number - 1 if number else None, Message(role="user", content=f"message {number}"), [1])
    with Store(folder / "sessions.db") as store:
        store.save(session)
    return folder


def forked() -> Session:
    """A session that the run forked twice: three paths with rewards of their own."""
    session = Session("forked-0.0-0", Task(id="fork"), group="forked-0.0", phase="train", step=3, environment="castle")
    root = tree.add(session, None, Message(role="user", content="You are in a hall. Where do you go?"), [3, 4])
    first = spoken(session, root, Message(role="assistant", content="North."), 3)
    seen = tree.add(session, first.id, Message(role="user", content="A locked door."), [5])
    narrowed(session, seen, Message(role="assistant", content="I open it with the key."), 3)
    for number, words in enumerate(("I wait.", "I go back to the hall.")):
        other = spoken(session, seen, Message(role="assistant", content=words), 3)
        told = tree.add(session, other.id, Message(role="user", content="It is dark now."), [6])
        spoken(session, told, Message(role="assistant", content=f"I light lamp {number}."), 3)
    session.branches = [
        Branch(None, 0, 4, Status.COMPLETED, {"gold": 1.0}, 1.0),
        Branch(2, 4, 7, Status.COMPLETED, {"gold": 0.0}, 0.0),
        Branch(2, 7, 10, Status.TRUNCATED, {"gold": 0.5}, 0.5),
    ]
    session.status, session.reward, session.rewards = Status.COMPLETED, 0.5, {"gold": 0.5}
    return session


def hostile_session() -> Session:
    """Text that would like to be markup, a script, a terminal's commands, or another reading direction."""
    session = Session(f"hostile/{HOSTILE[:20]}", Task(id=HOSTILE), group="hostile", phase="train", step=1)
    root = tree.add(session, None, Message(role="user", content=HOSTILE), [1])
    call = ToolCall(id="c", function=FunctionCall(name=HOSTILE, arguments=json.dumps({"x": HOSTILE})))
    called = spoken(
        session, root, Message(role="assistant", content=HOSTILE, reasoning_content=HOSTILE, tool_calls=[call]), 1
    )
    tree.add(session, called.id, Message(role="tool", content=HOSTILE + "x" * 2_000_000, tool_call_id="c"), [2])
    session.status, session.error, session.reward = Status.AGENT_ERROR, HOSTILE, 0.0
    return session
