"""Grammars of the local engine: turns fit them, and their tokens are trained like all others."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.attachments import support
from agentrl.errors import InvalidInput, MissingExtra
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.generation import generate_turn
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Chunk, FinishReason, Message, Sampling, Session, Task, Turn, collect
from benchmarks.fidelity import agreement
from tests.conftest import need
from tests.rollout.engines.test_support import BOUND

PROMPT = tuple(range(5, 25))
RECORD = ((support.NAME, len(PROMPT)),)
WORD = r"[a-f]{2,5}"
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "pattern": f"^{WORD}$"}, "yes": {"type": "boolean"}},
    "required": ["word", "yes"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "note": {"type": "string", "maxLength": 60}, "age": {"type": "integer"}},
    "required": ["name", "note", "age"],
}
GRAMMARS: Sequence[dict[str, Any]] = (
    {"json_schema": json.dumps(SCHEMA)},
    {"regex": rf"{WORD} {WORD}\."},
    {"json_schema": json.dumps(SCHEMA), "top_p": 0.8, "repetition_penalty": 1.3},
    {"regex": rf"{WORD} {WORD}\.", "top_k": 3, "temperature": 1.7, "logit_bias": ((70, 2.0),)},
)


@pytest.fixture(autouse=True)
def library() -> None:
    need(importlib.util.find_spec("llguidance") is not None, "llguidance, of the extra grammars")


def fits(text: str, own: Sampling) -> bool:
    """By Python's own JSON and regular expressions."""
    if own.regex is not None:
        return re.fullmatch(own.regex, text) is not None
    found = json.loads(text)
    return set(found) == {"word", "yes"} and bool(re.fullmatch(WORD, found["word"])) and isinstance(found["yes"], bool)


async def one_turn(engine: Any, session: Session, own: Sampling) -> None:
    user = tree.add(session, None, Message(role="user", content="."), list(PROMPT))
    turn = await generate_turn(engine, f"{session.id}/0", PROMPT, own, time.monotonic() + 60)
    tree.add_turn(session, user.id, [], turn, own, Message(role="assistant", content="."))


@pytest.mark.slow
async def test_turns_under_a_grammar_fit_it_and_each_token_has_the_log_probability_that_the_trainer_computes(
    engine: LocalEngine, folder: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(folder)
    end = tokenizer.special("<|im_end|>")
    sessions = []
    for number in range(12):
        session = Session(f"s{number}", Task(id="t"))
        own = Sampling(max_new_tokens=80, seed=number, stop_token_ids=(end,), record=RECORD, **GRAMMARS[number % 4])
        await one_turn(engine, session, own)
        node = session.nodes[-1]
        assert node.finish_reason is FinishReason.STOP
        assert node.stopped_by == end
        assert fits(tokenizer.decode(node.token_ids[:-1]), own)
        assert all(node.trainable)
        assert support.unpack(node.attachments[support.NAME]).rule.startswith("agentrl-1+llguidance-")
        sessions.append(session)
    assert agreement(TorchTrainer(folder), sessions).max <= BOUND
    with Store(tmp_path / "sessions.db") as store:
        for session in sessions:
            store.save(session)
            assert store.load(session.id) == session
    for session in sessions:
        del session.nodes[-1].attachments[support.NAME]
    assert agreement(TorchTrainer(folder), sessions).max > 1, "without the supports it would be another distribution"


@pytest.mark.slow
async def test_a_grammars_turn_that_is_continued_after_aborts_goes_on_where_it_was(
    engine: LocalEngine, folder: Path
) -> None:
    """The grammar began anew with each attempt, so a second object followed half of the first."""

    class Aborting:
        """Ends each attempt after three tokens, as a publication does."""

        capabilities = engine.capabilities

        async def generate(
            self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
        ) -> AsyncIterator[Chunk | Turn]:
            turn = await collect(engine.generate(request_id, input_ids, replace(sampling, max_new_tokens=3), deadline))
            ended = turn.finish_reason is FinishReason.STOP
            yield turn if ended else replace(turn, finish_reason=FinishReason.ABORT)

    tokenizer = load_tokenizer(folder)
    sessions = []
    for own in GRAMMARS[:2]:
        session = Session(own.get("regex", "json"), Task(id="t"))
        wanted = Sampling(max_new_tokens=80, seed=2, record=RECORD, **own)
        await one_turn(Aborting(), session, wanted)
        node = session.nodes[-1]
        assert len(node.token_ids) > 6
        assert node.stopped_by in tokenizer.end_tokens, "of the model, where no stop token was asked for"
        assert fits(tokenizer.decode(node.token_ids[:-1]), wanted)
        assert all(node.trainable)
        sessions.append(session)
    assert agreement(TorchTrainer(folder), sessions).max <= BOUND
    with pytest.raises(InvalidInput, match="tokens before an abort do not fit"):
        await collect(engine.generate("s/0", PROMPT, Sampling(regex="a", record=((support.NAME, 10),))))


async def test_greedy_turns_keep_to_a_grammar_and_a_grammar_that_is_none_is_refused_by_name(
    engine: LocalEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Sampling(temperature=0.0, max_new_tokens=80, **GRAMMARS[0])
    turn = await collect(engine.generate("s/0", PROMPT, own))
    assert fits(load_tokenizer(folder).decode(turn.token_ids[:-1]), own)
    assert not turn.attachments
    for wrong, message in (
        ({"regex": "(("}, "sampling.regex is no grammar.*regex parse error"),
        ({"json_schema": "no"}, "sampling.json_schema"),
        ({"json_schema": '{"type": "strin"}'}, "sampling.json_schema is no grammar.*strin"),
    ):
        with pytest.raises(InvalidInput, match=message):
            await collect(engine.generate("s/0", PROMPT, Sampling(**wrong)))
    monkeypatch.setitem(sys.modules, "llguidance", None)
    engine._grammars = None
    with pytest.raises(MissingExtra, match=r"extra 'grammars'.*agentrl-platform\[grammars\]"):
        await collect(engine.generate("s/0", PROMPT, own))


@pytest.mark.slow
async def test_a_grammar_that_the_library_gives_up_ends_its_own_turn_and_no_other(engine: LocalEngine) -> None:
    """It ended the engine, and with it the run: a schema that refers to itself is taken, and fails at its first token.

    The program wrote the grammar, so the error is its own.
    """
    endless = Sampling(max_new_tokens=20, seed=1, json_schema=json.dumps({"$ref": "#"}))
    plain = Sampling(max_new_tokens=20, seed=1)
    alone = await collect(engine.generate("s/0", PROMPT, plain))
    failed, beside = await asyncio.gather(
        collect(engine.generate("s/1", PROMPT, endless)),
        collect(engine.generate("s/2", PROMPT, plain)),
        return_exceptions=True,
    )
    assert isinstance(failed, InvalidInput)
    assert "the turn's grammar" in str(failed)
    assert isinstance(beside, Turn)
    assert beside.token_ids == alone.token_ids


def test_under_a_schema_with_free_strings_nearly_all_tokens_of_a_real_vocabulary_are_trained(smollm: Path) -> None:
    """99 % and more, at two kilobytes a token; masks along a bounded string differ from token to token."""
    from agentrl.rollout.engines.grammars import Grammars

    tokenizer = load_tokenizer(smollm)
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    dice = random.Random(0)
    words = [
        "the",
        "engine",
        "weaves",
        "é",
        "algebraic",
        "☃",
        "patterns",
        'as "looms"',
        "weave",
        "\\",
        "flowers\n1",
        "🙂",
    ]
    rows = trained = stored = 0
    for _ in range(20):
        name, note = (" ".join(dice.choices(words, k=count)) for count in (dice.randint(1, 40), 7))
        text = json.dumps({"name": name, "note": note[:60], "age": dice.randint(0, 99)}, ensure_ascii=False)
        own = Sampling(json_schema=json.dumps(FREE), stop_token_ids=(tokenizer.end_tokens[0],))
        matcher, recorder = grammars.matcher(own, ()), support.SupportRecorder(tokenizer.vocab_size, 2048)
        for token in (*tokenizer.encode(text), tokenizer.end_tokens[0]):
            allowed = matcher.allowed()
            assert allowed[token], text
            recorder.add(allowed.nonzero()[0], token)
            assert matcher.accept(token)
        assert matcher.ended
        data = recorder.data()
        codes = support.unpack(data).codes
        rows, trained, stored = rows + len(codes), trained + sum(c >= support.FULL for c in codes), stored + len(data)
    assert trained >= 0.99 * rows
    assert stored <= 2048 * rows
