"""Clients' grammars on the real engine: replies fit them, and every sampled token can be trained."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.attachments import support
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.store.export import to_jsonl
from tests.conftest import need
from tests.sessions.exported import from_jsonl
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.test_chat import HI, client

SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "pattern": "^[a-f]{2,5}$"}},
    "required": ["word"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "word", "schema": SCHEMA}}
MAPPING = {"type": "object", "additionalProperties": {"type": "boolean"}}
EMPTY = {"frequency_penalty": 1, "repetition_penalty": 1.3, "logit_bias": {"70": 2}, "min_p": 0.01}
LIKELIEST = {"top_k": 1, "top_p": 1.0, "logit_bias": {"70": 2}}
FITS = re.compile(r'\{"word":"[a-f]{2,5}"\}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(importlib.util.find_spec("llguidance") is not None, "llguidance, of the extra grammars")
    pytest.importorskip("torch")
    from agentrl.models import tiny

    text = "<|im_start|>user\nwhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n42<|im_end|>\n"
    return tiny.build(
        tmp_path_factory.mktemp("models") / "tiny", [text] * 20, shape=tiny.TinyShape(vocab=280, layers=1)
    )


@pytest.mark.slow
async def test_replies_that_a_client_wants_in_a_form_have_it_and_all_their_tokens_are_trained(
    serve: Serve, folder: Path, tmp_path: Path
) -> None:
    """Whole and streamed, after one another and beside one another, by each kind of form, also with filters beside."""
    from agentrl.config import EngineConfig
    from agentrl.rollout.engines.local.engine import LocalEngine
    from agentrl.sessions.renderers import get_renderer
    from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
    from benchmarks.fidelity import agreement

    engine = LocalEngine(folder, EngineConfig(max_batch=4))
    async with serve(engine, get_renderer(folder), limits=Limits(sampling="client")) as served:
        access = await served.open()
        speaker = client(access)
        first = await speaker.chat.completions.create(model="m", messages=HI, response_format=FORM, temperature=0.8)
        said = first.choices[0].message.content
        assert FITS.fullmatch(said)
        after = [*HI, {"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
        for top_p in (1.0, 0.9):  # two continuations of one path
            stream = await speaker.chat.completions.create(
                model="m", messages=after, response_format=FORM, top_p=top_p, stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            assert FITS.fullmatch("".join(pieces))
        for other, fits in (
            (EMPTY | {"structured_outputs": {"regex": "[ab]*"}, "max_tokens": 8}, "[ab]*"),
            (LIKELIEST | {"guided_json": MAPPING, "max_tokens": 8}, r"\s*\{.*"),
            ({"structured_outputs": {"regex": "(yes|no)[!?]"}}, "(yes|no)[!?]"),
            ({"guided_choice": ["1+1", "a|b", "(c)"]}, r"1\+1|a\|b|\(c\)"),
            ({"response_format": {"type": "json_object"}, "max_tokens": 8}, r"\s*\{.*"),
        ):
            answer = await speaker.chat.completions.create(model="m", messages=HI, extra_body=other)
            assert re.fullmatch(fits, answer.choices[0].message.content or "", re.DOTALL)
        with pytest.raises(Exception, match="is no grammar that can be kept to"):
            await speaker.chat.completions.create(
                model="m", messages=HI, extra_body={"structured_outputs": {"regex": "(("}}
            )
        session = served.session(access["id"])
    sampled = [node for node in session.nodes if node.sampled]
    assert len(sampled) == 8
    for node in sampled:
        assert all(node.trainable[node.versions[0].start :])
        assert node.sampling is not None
        assert node.sampling.grammar
        assert support.NAME in node.attachments
    assert not [name for name in session.counters if name.startswith("untrainable")]
    assert agreement(TorchTrainer(folder), [session]).max <= 1e-5
    to_jsonl([session], tmp_path / "sessions.jsonl")
    [read] = from_jsonl(tmp_path / "sessions.jsonl")
    assert read.nodes == session.nodes
    assert replace(sampled[-2].sampling, regex=None) != read.nodes[sampled[-2].id].sampling
    assert json.loads(sampled[0].sampling.json_schema) == SCHEMA
