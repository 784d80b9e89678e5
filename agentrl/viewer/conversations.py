"""One session as the page shows it: its tree in outline, messages and tokens where they are asked for, and copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from agentrl.attachments import support
from agentrl.errors import AgentRLError, InvalidInput
from agentrl.models.tokenizers import HFTokenizer, load_tokenizer
from agentrl.overrides import read_yaml
from agentrl.sessions.store.export import session_dict
from agentrl.sessions.tree import trainability, tree
from agentrl.sessions.tree.codec import pack_ids
from agentrl.train.record import trainer_logprobs
from agentrl.types import MAIN, Message, Node, Session, Status
from agentrl.viewer import images
from agentrl.viewer.origins import find_credited
from agentrl.viewer.replayed import Replayed
from agentrl.viewer.runs import Run

PREVIEW = 120
"""Characters of a message in the outline."""
CLIP = 100_000
"""Characters of a text that the page gets; the export has all of it."""
MOST_NODES = 200
"""The most messages in one answer."""


def head(found: Replayed) -> dict[str, Any]:
    """Return what the page shows around the conversation, and an outline of the nodes, those of replays included."""
    session, turns, excluded = found.session, _turns(found.session), found.session.excluded_nodes()
    return {
        "id": session.id,
        "group": session.group,
        "sample": session.sample,
        "status": session.status.value,
        "error": _clip(session.error),
        "task": {"id": session.task.id, "data": _clip(session.task.data)},
        "phase": session.phase,
        "step": session.step,
        "environment": session.environment,
        "seed": str(session.seed),  # beyond what JavaScript's numbers hold
        "reward": session.reward,
        "score": session.score,
        "rewards": session.rewards,
        "agent_rewards": session.agent_rewards,
        "started": session.started,
        "ended": session.ended,
        "timings": session.timings,
        "counters": session.counters,
        "info": _clip(session.info),
        "branches": [
            {"head": b.head, "start": b.start, "end": b.end, "status": b.status.value, "reward": b.reward}
            for b in found.tree.branches
        ],
        "recorded": len(session.nodes),
        "nodes": [{**_outline(node, node.id in excluded), "turn": turns.get(node.id)} for node in found.tree.nodes],
    }


def _turns(session: Session) -> dict[int, int]:
    """The number of each turn of the trained policy, from 1, by its node: what `agentrl replay` calls `turn`."""
    played = (node.id for node in session.nodes if node.sampled and node.policy == MAIN)
    return {id_: number for number, id_ in enumerate(played, 1)}


def no_replay(run: Run, session: Session) -> str:
    """Return why a session can't be replayed, in words; '' where it can."""
    if session.status is Status.OPEN:
        return "it has not ended"
    if session.phase not in ("train", "eval"):
        return f"it is of the phase {session.phase or 'none'}"
    return "an agent program played it" if run.settings().get("agent") else ""


def _outline(node: Node, excluded: bool) -> dict[str, Any]:
    message = node.message
    calls = [call.function.name for call in message.tool_calls or ()]
    sampled = node.logprobs[node.versions[0].start :] if node.versions else []
    return {
        "id": node.id,
        "parent": node.parent,
        "role": message.role,
        "agent": node.agent,
        "policy": node.policy,
        "preview": images.preview(message)[:PREVIEW] or ", ".join(f"{name}(…)" for name in calls)[:PREVIEW],
        "calls": calls,
        "digest": blake2b(pack_ids(node.token_ids), digest_size=8).hexdigest(),
        "tokens": len(node.token_ids),
        "sampled": len(sampled),
        "trained": 0 if excluded else node.trainable.count(True),
        "excluded": excluded,
        "logp": sum(sampled) / len(sampled) if sampled else None,
        "versions": [span.version for span in node.versions],
        "finish": node.finish_reason.value if node.finish_reason else None,
        "temperature": node.sampling.temperature if node.sampling else None,
        "reward": node.reward,
        "copy_of": node.copy_of,
        "timings": node.timings,
    }


def messages(session: Session, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The messages of some nodes, with long texts cut.

    Raises:
        InvalidInput: too many nodes at once.
        TreeError: there is no such node.
    """
    if len(ids) > MOST_NODES:
        raise InvalidInput(f"{len(ids)} nodes at once; at most {MOST_NODES}")
    nodes = [tree.get(session, id_) for id_ in ids]
    return [
        {"id": node.id, "message": _clip(images.list_message(node.message)), "tools": _clip(node.tools)}
        for node in nodes
    ]


def tokens(run: Run, session: Session, id_: int) -> dict[str, Any]:
    """A node's tokens as columns (id, text, log-probability: None where not sampled, mask, policy version) and origin.

    Texts are None where the run's tokenizer is not at hand, or another policy spoke; `trainer`, the trainer's
    log-probabilities before the step that trained them, is None where they were not recorded (`record_logprobs`).
    `support`, what the tokens were drawn from, is None where it was not recorded; `untrainable` is a reason in words,
    and None for other tokens.
    """
    node = tree.get(session, id_)
    tokenizer = _tokenizer(run) if node.policy in (None, MAIN) else None
    start = node.versions[0].start if node.versions else len(node.token_ids)
    versions: list[int | None] = [None] * len(node.token_ids)
    for span in node.versions:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    reasons = trainability.list_reasons(node)
    unsampled = [None] * (len(node.token_ids) - len(reasons))
    return {
        "id": node.token_ids,
        "text": [tokenizer.decode([token]) if tokenizer else None for token in node.token_ids],
        "logp": [logp if place >= start else None for place, logp in enumerate(node.logprobs)],
        "trained": node.trainable,
        "untrainable": [*unsampled, *(reason.words if reason else None for reason in reasons)],
        "support": _support(node),
        "version": versions,
        "position": tree.position(session, id_),
        "origin": run.origins.of(session, node) if node.sampled else None,
        "trainer": _trainer(run, session, node) if node.sampled else None,
    }


def _support(node: Node) -> dict[str, Any] | None:
    """Return how many tokens each of a turn's was drawn from, None where that is not known, and by which rule."""
    data = node.attachments.get(support.NAME)
    if data is None:
        return None
    found = support.unpack(data)
    unknown = [None] * (len(node.token_ids) - len(found.codes))
    sizes = [*unknown, *found.count_kept()][-len(node.token_ids) :]
    return {"rule": found.rule, "vocabulary": found.vocabulary, "sizes": sizes}


def _trainer(run: Run, session: Session, node: Node) -> dict[str, Any] | None:
    """The trainer's log-probabilities of a turn, None at tokens that are not trained, with their step and version."""
    found = trainer_logprobs.last_of(run.path, *find_credited(session, node))
    if found is None:
        return None
    pairs = zip(found.logprobs, node.trainable, strict=True)
    logps = [logp if trained else None for logp, trained in pairs]
    return {"step": found.step, "version": found.version, "logp": logps}


def _tokenizer(run: Run) -> HFTokenizer | None:
    """The tokenizer of the model that the run began with: in its folder, or where its settings say."""
    named = str(run.settings().get("model.name") or "")
    for folder in (run.path / "model", Path(named)):
        if (folder / "tokenizer.json").is_file():
            try:
                return load_tokenizer(folder)
            except AgentRLError:
                return None
    return None


def _clip(value: Any) -> Any:
    """The value with long texts in it cut; what was left out is said."""
    if isinstance(value, str):
        return value if len(value) <= CLIP else f"{value[:CLIP]}\n… {len(value) - CLIP:,} more characters"
    if isinstance(value, dict):
        return {key: _clip(each) for key, each in value.items()}
    return [_clip(each) for each in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------------------------- copies


def as_json(session: Session) -> str:
    """The whole session, as `agentrl.sessions.store.export.to_jsonl` writes it."""
    return orjson.dumps(session_dict(session), option=orjson.OPT_INDENT_2).decode()


def as_openai(session: Session, leaf: int) -> str:
    """The path to a node in OpenAI's chat format: `messages`, and the root's `tools`."""
    path = tree.path(session, leaf)
    body: dict[str, Any] = {"messages": [_openai(node.message) for node in path]}
    if path[0].tools:
        body["tools"] = path[0].tools
    return orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()


def _openai(message: Message) -> dict[str, Any]:
    plain = message.model_dump(exclude_none=True)
    for call in plain.get("tool_calls", ()):
        call.pop("error", None)
    return plain


def as_pytest(run: Run, session: Session, leaf: int) -> str:
    """A test that plays the path's turns to the environment again and expects the answers that it gave.

    Raises:
        InvalidInput: the path has several agents, or an environment's settings are not there.
    """
    path = [session.original(node) for node in tree.path(session, leaf)]
    if len({node.agent for node in path}) > 1:
        raise InvalidInput("a path of several agents can't be played to an environment as a test")
    options = dict(read_yaml(run.path / "config.yaml").get("env") or {})
    name = options.pop("name", None)
    if name is None or run.settings().get("agent") is not None:
        raise InvalidInput("the run has no environment of its own that could be played again")
    return _TEST.format(
        about=repr(f"Session {session.id} of {run.name}: its environment gives the recorded answers again.")[1:-1],
        name=name,
        options=options,
        task=session.task.id,
        data=session.task.data,
        seed=session.seed,
        turns="".join(f"    ({turn!r}, {answers!r}),\n" for turn, answers in _exchanges(path)),
    )


def _exchanges(path: Iterable[Node]) -> list[tuple[dict[str, Any], list[str]]]:
    """Each turn, and the texts that followed it."""
    found: list[tuple[dict[str, Any], list[str]]] = []
    for node in path:
        if node.message.role == "assistant":
            found.append((node.message.model_dump(exclude_none=True), []))
        elif found:
            found[-1][1].append(node.message.text)
    return found


_TEST = '''"""{about}"""

import asyncio
import inspect

import agentrl
from agentrl import Message, Task

TASK = Task(id={task!r}, data={data!r})
TURNS = [  # what the model wrote, and what the environment answered
{turns}]


def test_the_environment_gives_the_recorded_answers():
    assert asyncio.run(played()) == [answers for _, answers in TURNS]


async def played():
    env = agentrl.make({name!r}, **{options!r})
    try:
        await finished(env.reset(TASK, seed={seed!r}))
        steps = [await finished(env.step(Message(**turn))) for turn, _ in TURNS]
        return [[message.text for message in step.messages] for step in steps]
    finally:
        await finished(env.close())


async def finished(value):
    return await value if inspect.isawaitable(value) else value
'''
