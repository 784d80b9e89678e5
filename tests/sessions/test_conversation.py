"""Conversations against a small engine that remembers every call: path concatenation is what it saw."""

from __future__ import annotations

import asyncio
import time
import warnings
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.attachments import critic_view, routed_experts
from agentrl.errors import DeadlineExceeded, EngineError, TokenBudgetExceeded, TreeError
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.generation import generate
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import FinishReason, Message, Sampling, Session, Task, Turn, collect
from tests.sessions.fakes import END, DiceEngine, LetterRenderer, fake_experts

SOON = 60.0


def begin(engine: DiceEngine | None = None, **options: object) -> Conversation:
    engine = engine or DiceEngine()
    return Conversation(Session("s", Task(id="t")), TurnGenerator(LetterRenderer(), engine, **options))  # type: ignore[arg-type]


async def generate_turn(conversation: Conversation, **fields: object) -> object:
    sampling = Sampling(**{"max_new_tokens": 24, **fields})  # type: ignore[arg-type]
    return await conversation.generate(sampling, time.monotonic() + SOON)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(["user", "tool", "assistant"]), st.text("ab<>", max_size=8)),
        st.tuples(st.just("generate"), st.sampled_from([0.5, 1.0]), st.integers(0, 2**62)),
        st.tuples(st.just("show"), st.text("xyz", max_size=8), st.none()),
        st.tuples(st.just("branch"), st.integers(0, 50), st.none()),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS, st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 0.5]))
@settings(deadline=None)
@pytest.mark.slow
def test_path_concatenation_is_what_the_engine_saw(steps: list[tuple], abort: float, silent: float) -> None:
    """Whatever is said, shown, drawn, cut by new weights, left unended or branched off: token for token."""
    engine = DiceEngine(abort=abort, silent_stop=silent)
    session = Session("s", Task(id="t"))
    generator = TurnGenerator(LetterRenderer(), engine)
    conversation = Conversation(session, generator, tools=[{"function": {"name": "f"}}])
    conversation.add([{"role": "system", "content": "be kind"}])

    async def play() -> None:
        nonlocal conversation
        for kind, first, second in steps:
            if kind == "branch":
                open_ends = [n.id for n in session.nodes if n.finish_reason is not FinishReason.LENGTH]
                conversation = Conversation(
                    session, TurnGenerator(LetterRenderer(), engine), head=open_ends[first % len(open_ends)]
                )
            elif conversation.head.finish_reason is FinishReason.LENGTH:
                continue
            elif kind == "add":
                conversation.add(Message(role=first, content=second))
            elif kind == "show":
                conversation.demonstrate(Message(role="assistant", content=first))
            else:
                before, called = conversation.token_ids, len(engine.calls)
                node = await generate_turn(conversation, temperature=first, seed=second)
                legs = engine.calls[called:]
                opening = LetterRenderer().generation_prompt(session.nodes[node.parent])
                seen = before + opening
                for leg in legs:
                    assert leg.input_ids == seen
                    seen = seen + list(leg.turn.token_ids)
                assert tree.path_ids(session, node.id) == seen
                await _is_scored_as_drawn(engine, session, node.id, first)

    asyncio.run(play())
    tree.check(session)
    assert conversation.token_ids == tree.path_ids(session, conversation.head.id)
    assert conversation.messages == [node.message for node in tree.path(session, conversation.head.id)]


async def _is_scored_as_drawn(engine: DiceEngine, session: Session, node_id: int, temperature: float) -> None:
    node, place = session.nodes[node_id], tree.position(session, node_id)
    scores = await engine.score(tree.path_ids(session, node_id), temperature)
    for offset, (trainable, logp) in enumerate(zip(node.trainable, node.logprobs, strict=True)):
        if trainable:
            assert logp == pytest.approx(scores[place + offset])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, abort=st.sampled_from([0.0, 0.4]))
def test_every_turn_records_what_no_turn_before_it_on_its_path_has(steps: list[tuple], abort: float) -> None:
    async def play() -> None:
        talk, kinds = begin(DiceEngine(abort=abort, experts=True, chunk=2)), [routed_experts.NAME]
        for kind, what, text in steps:
            record = tree.find_unrecorded(talk.session, talk.head.id if talk.head else None, kinds)
            if kind == "branch" and talk.session.nodes:
                talk = begin_at(talk, what % len(talk.session.nodes))
            elif kind == "generate" and talk.head is not None and talk.head.finish_reason is not FinishReason.LENGTH:
                node = await talk.generate(
                    Sampling(temperature=what, max_new_tokens=9, seed=text), time.monotonic() + SOON
                )
                path = tree.path_ids(talk.session, node.id)
                assert node.attachments == fake_experts(path, record)
                assert tree.find_unrecorded(talk.session, node.id, [routed_experts.NAME]) == (
                    (routed_experts.NAME, len(path) - 1),
                )
                assert node.sampling is not None
                assert node.sampling.record == ()  # how it was asked for is no part of how it was drawn
            elif kind == "add" and (talk.head is None or talk.head.finish_reason is not FinishReason.LENGTH):
                talk.add(Message(role=what, content=text))
        tree.check(talk.session)

    asyncio.run(play())


def begin_at(talk: Conversation, node_id: int) -> Conversation:
    return Conversation(talk.session, talk.generator, head=node_id)


async def test_a_turn_cut_by_new_weights_goes_on_in_the_same_node_under_the_new_version() -> None:
    conversation = begin(DiceEngine(abort=1.0, chunk=2, end_weight=0.5))
    conversation.add("hello")
    node = await generate_turn(conversation, seed=1)
    assert len(node.versions) > 1
    assert [span.version for span in node.versions] == list(range(len(node.versions)))
    assert len(conversation.session.nodes) == 2


async def test_what_is_attached_to_a_conversation_goes_with_its_generated_turns_beside_what_engines_record() -> None:
    talk = begin(DiceEngine(experts=True))
    talk.add("hello")
    talk.attached = {critic_view.NAME: critic_view.pack([0.5])}
    node = await generate_turn(talk, record=((routed_experts.NAME, 0),))
    assert node.attachments.keys() == {critic_view.NAME, routed_experts.NAME}
    talk.restart()
    talk.attached = {}
    talk.add("again")
    assert critic_view.NAME not in (await generate_turn(talk)).attachments


async def test_the_segments_of_a_cut_turn_have_random_numbers_of_their_own() -> None:
    engine = DiceEngine(abort=1.0, chunk=2, end_weight=0.5)
    conversation = begin(engine)
    conversation.add("hello")
    await generate_turn(conversation, seed=1)
    seeds = [call.sampling.seed for call in engine.calls]
    assert len(seeds) > 1
    assert len(set(seeds)) == len(seeds)


async def test_a_turn_never_takes_more_new_tokens_than_requested_however_often_it_is_cut() -> None:
    conversation = begin(DiceEngine(abort=1.0, chunk=3, end_weight=0.0001))
    conversation.add("hello")
    node = await generate_turn(conversation, max_new_tokens=10)
    assert sum(node.trainable) == 10
    assert node.finish_reason is FinishReason.LENGTH


async def test_the_end_of_turn_token_that_the_model_left_out_opens_the_next_node_untrained() -> None:
    conversation = begin(DiceEngine(silent_stop=1.0, end_weight=0.0001))
    conversation.add("hello")
    node = await generate_turn(conversation)
    assert node.token_ids[-1] != END
    (answer,) = conversation.add("next")
    assert answer.token_ids[0] == END
    assert not any(answer.trainable)


def left_of(conversation: Conversation) -> int:
    """The tokens that the budgets still allow."""
    return conversation.budget.left


@pytest.mark.parametrize("budget", ["context_tokens", "session_tokens"])
async def test_a_budget_clamps_the_turn_and_then_is_used_up(budget: str) -> None:
    conversation = begin(DiceEngine(end_weight=0.0001), **{budget: 14})
    conversation.add("hello")  # 7 tokens, and 1 of generation prompt: 6 left
    node = await generate_turn(conversation)
    assert (sum(node.trainable), node.finish_reason) == (6, FinishReason.LENGTH)
    assert left_of(conversation) == 0
    full = begin(DiceEngine(), **{budget: 8})
    full.add("hello")
    with pytest.raises(TokenBudgetExceeded):
        await generate_turn(full)
    assert len(full.session.nodes) == 1


async def test_the_session_budget_counts_other_branches_and_the_context_budget_does_not() -> None:
    session, engine = Session("s", Task(id="t")), DiceEngine()
    generator = TurnGenerator(LetterRenderer(), engine, context_tokens=100, session_tokens=100)  # type: ignore[arg-type]
    trunk = Conversation(session, generator)
    (root,) = trunk.add("root")
    branch = Conversation(session, generator, head=root.id)
    trunk.add("x" * 40)
    assert left_of(trunk) == left_of(branch) == 100 - tree.size(session)
    unbudgeted = Conversation(session, replace(generator, session_tokens=None), head=root.id)
    assert left_of(unbudgeted) == 100 - len(root.token_ids)


async def test_the_engines_own_context_is_a_limit_too() -> None:
    conversation = begin(DiceEngine(max_context=9), context_tokens=1000)
    conversation.add("hello")
    assert left_of(conversation) == 2


async def test_narrowed_sampling_is_stored_untrainable_and_warned_of() -> None:
    conversation = begin()
    conversation.add("hello")
    with pytest.warns(UserWarning, match="untrainable"):
        node = await generate_turn(conversation, top_p=0.9)
    assert node.sampled
    assert not any(node.trainable)


async def test_temperature_0_is_for_evaluation_and_not_warned_of() -> None:
    conversation = begin()
    conversation.add("hello")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        node = await generate_turn(conversation, temperature=0.0)
    assert not any(node.trainable)


async def test_a_demonstration_is_trained_on_without_having_been_sampled() -> None:
    conversation = begin()
    conversation.add("hello")
    node = conversation.demonstrate(Message(role="assistant", content="hey"))
    assert node.trainable == [False, True, True, True, True]
    assert not node.sampled
    assert set(node.logprobs) == {0.0}
    tree.check(conversation.session)


@pytest.mark.slow
async def test_a_stalled_engine_runs_into_the_deadline_and_nothing_is_stored() -> None:
    engine = DiceEngine(latency=30.0)
    conversation = begin(engine)
    conversation.add("hello")
    with pytest.raises(DeadlineExceeded):
        await conversation.generate(Sampling(), time.monotonic() + 0.5)
    assert engine.aborted == 1
    assert len(conversation.session.nodes) == 1


async def test_an_engine_that_always_aborts_runs_into_the_deadline_too() -> None:
    conversation = begin(DiceEngine(abort=1.0, chunk=1, end_weight=0.0001))
    conversation.add("hello")
    with pytest.raises(DeadlineExceeded):
        await conversation.generate(Sampling(max_new_tokens=10**6), time.monotonic() + 0.2)


async def test_a_turn_in_many_chunks_has_one_deadline_and_costs_one_timer() -> None:
    loop, timers = asyncio.get_running_loop(), 0

    def counted(*args: object, call_at=loop.call_at, **kwargs: object) -> asyncio.TimerHandle:  # type: ignore[no-untyped-def]
        nonlocal timers
        timers += 1
        return call_at(*args, **kwargs)  # type: ignore[no-any-return]

    conversation = begin(DiceEngine(chunk=1))
    conversation.add("hello")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_at", counted)
        node = await conversation.generate(Sampling(), time.monotonic() + 60)
    assert len(node.token_ids) > 2
    assert timers == 1


async def test_cancelling_a_request_aborts_the_generation() -> None:
    engine = DiceEngine(latency=30.0)
    conversation = begin(engine)
    conversation.add("hello")
    task = asyncio.create_task(generate_turn(conversation))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.aborted == 1


@pytest.mark.parametrize("items", [(), (Turn((), (), (), FinishReason.STOP),)])
async def test_an_engine_that_generates_no_turn_or_no_token_is_named_broken(items: tuple[Turn, ...]) -> None:
    class Mute(DiceEngine):
        async def generate(self, *args: object, **kwargs: object):  # type: ignore[no-untyped-def, override]
            for item in items:
                yield item

    with pytest.raises(EngineError, match=r"without a turn|without tokens"):
        await collect(generate(Mute(), "s/0", [1], Sampling(), time.monotonic() + SOON))  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_conversation_needs_a_message_and_an_engine_before_it_can_answer() -> None:
    with pytest.raises(TreeError, match="needs a message"):
        await generate_turn(begin())
    mute = Conversation(Session("s", Task(id="t")), TurnGenerator(LetterRenderer(), None))
    mute.add("hello")
    with pytest.raises(TreeError, match="no engine"):
        await generate_turn(mute)
