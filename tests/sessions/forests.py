"""Random session trees for property tests: every shape that the invariants allow."""

from __future__ import annotations

from hypothesis import strategies as st

from agentrl.sessions.tree import tree
from agentrl.types import FinishReason, FunctionCall, Message, Sampling, Session, Task, ToolCall, Turn, VersionSpan

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
TEXT = st.text(max_size=12)
SAMPLINGS = st.sampled_from(
    [
        Sampling(),
        Sampling(temperature=0.7, seed=3, stop=("\n",), stop_token_ids=(5,)),
        Sampling(top_p=0.9),
        Sampling(logit_bias=((4, 1.5),), json_schema="{}"),
        Sampling(regex="[a-z]+", repetition_penalty=1.2),
    ]
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    legs = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    spans, at = [], 0
    for version, length in enumerate(legs):
        spans.append(VersionSpan(version, at, at + length))
        at += length
    ids = draw(st.lists(st.integers(0, 50_000), min_size=at, max_size=at))
    logps = draw(st.lists(st.floats(-20, 0), min_size=at, max_size=at))
    reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH]))
    stopped_by = draw(st.sampled_from([None, 5, "\n"])) if reason is FinishReason.STOP else None
    attached = draw(st.just({}) | experts(at))
    return Turn(tuple(ids), tuple(logps), tuple(spans), reason, stopped_by, attachments=attached)


@st.composite
def experts(draw: st.DrawFn, most: int) -> dict[str, bytes]:
    """Routed experts of at most so many tokens: one byte for each of 2 layers' 2 experts."""
    rows = draw(st.lists(st.binary(min_size=4, max_size=4), max_size=most))
    return {"routed_experts": bytes((1, 2, 2, 0)) + b"".join(rows)}


@st.composite
def messages(draw: st.DrawFn, role: str) -> Message:
    if role != "assistant":
        return Message(role=role, content=draw(TEXT), tool_call_id="c0" if role == "tool" else None)  # type: ignore[arg-type]
    calls = [ToolCall(id="c0", function=FunctionCall(name="f", arguments=draw(TEXT)), error=draw(st.none() | TEXT))]
    reasoning = draw(st.none() | TEXT)
    return Message(role="assistant", content=draw(TEXT), reasoning_content=reasoning, tool_calls=calls)


@st.composite
def sessions(draw: st.DrawFn, max_nodes: int = 12) -> Session:
    session = Session(draw(st.uuids()).hex, Task(id="t", data={"x": draw(TEXT)}), group="g", step=3, info={"seen": 3})
    for _ in range(draw(st.integers(0, max_nodes))):
        open_ends = [n.id for n in session.nodes if n.finish_reason is not FinishReason.LENGTH]
        parent = draw(st.sampled_from([None, *open_ends]))
        ended = [n for n in session.nodes if n.sampled and n.finish_reason is FinishReason.STOP]
        kinds = ["user", "tool", "system", "injected", "again", "shown", "sampled"]
        kinds += ["extended"] * 4 if ended else ["sampled"]
        kind = draw(st.sampled_from(kinds))
        agent = draw(st.sampled_from(["agent", "critic"]))
        if kind == "sampled":
            opening, message = draw(TOKENS), draw(messages("assistant"))
            node = tree.add_turn(session, parent, opening, draw(turns()), draw(SAMPLINGS), message, agent=agent)
        elif kind == "shown":
            ids = draw(TOKENS)
            shown = [place >= len(ids) // 2 for place in range(len(ids))]
            node = tree.add(session, parent, draw(messages("assistant")), ids, trainable=shown, agent=agent)
        elif kind == "again":
            turns_so_far = [n.id for n in session.nodes if n.message.role == "assistant"]
            repeats, message = draw(st.sampled_from([None, *turns_so_far])), draw(messages("assistant"))
            if repeats is not None:
                first = session.nodes[repeats].copy_of
                repeats = repeats if first is None else first
                message = session.nodes[repeats].message.model_copy(update={"reasoning_content": None})
            node = tree.add(session, parent, message, draw(TOKENS), agent=agent, copy_of=repeats)
        elif kind == "extended":
            turn = draw(st.sampled_from(ended))
            before = [n.copied_tokens for n in session.nodes if n.copy_of == turn.id and n.copied_tokens is not None]
            first = turn.versions[0].start + 1
            taken = before[0] if before else draw(st.integers(first, len(turn.token_ids)))
            message = turn.message.model_copy(update={"content": turn.message.text + draw(TEXT)})
            ids = [*turn.token_ids[:taken], *draw(TOKENS)]
            node = tree.add(session, turn.parent, message, ids, agent=agent, copy_of=turn.id, copied_tokens=taken)
        else:
            role = "assistant" if kind == "injected" else kind
            tools = [{"type": "function", "function": {"name": "f"}}] if parent is None else []
            node = tree.add(session, parent, draw(messages(role)), draw(TOKENS), tools=tools, agent=agent)
        node.reward = draw(st.none() | st.floats(-1, 1))
    session.rewards = draw(st.dictionaries(st.sampled_from(["sold", "polite"]), st.floats(-1, 1)))
    return session
