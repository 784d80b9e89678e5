"""A teacher behind an API that echoes prompts: it is asked again where it fails, and refused where it can't answer.

SGLang and vLLM are asked in `tests/rollout/engines`; this server stands for the others.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentrl.config import EngineConfig, PolicyConfig, RunConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.models import tiny
from agentrl.models.tokenizers import load_tokenizer
from agentrl.overrides import spread, validate
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.train.plan.preflight import check_training
from agentrl.train.trainers.teachers import server
from agentrl.train.trainers.teachers.scorers import EngineScorer, PathScorer
from agentrl.train.trainers.teachers.server import TeacherServer
from agentrl.types import Group, Sampling
from tests.train.trees import as_group, random_session


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = ["two and three make five; the teacher reads this", server.PROBE]
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny", texts, shape=tiny.TinyShape(vocab=288, context=512))


@pytest.fixture
def group() -> Group:
    session = random_session(random.Random(4), "s", [5, 6, 7], depth=4, branching=2)
    for node in session.nodes:
        node.sampling = None if node.sampling is None else Sampling(temperature=1.0)
    return as_group([session], "g")


@contextmanager
def echoing(folder: Path, failing: int = 0, *, echoes: bool = True) -> Iterator[str]:
    """An API of completions that tells log-probabilities of an echoed prompt, -0.001 times the token id; the first
    `failing` requests after the probe's fail."""
    tokenizer, asked = load_tokenizer(folder), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"data": [{"id": "teacher"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self.path.endswith("/v1/completions"):
                self.answer(404, {"error": "no such route"})
                return
            if not (body.get("echo") and echoes):
                self.answer(200, {"choices": [{"text": " .", "logprobs": None}]})
                return
            asked[0] += 1
            if 1 < asked[0] <= 1 + failing:
                self.answer(503, {"error": "overloaded"})
                return
            ids = [*body["prompt"], 3]
            told = {"token_logprobs": [None, *(-0.001 * token for token in ids[1:])]}
            self.answer(200, {"choices": [{"logprobs": {**told, "tokens": [tokenizer.decode([t]) for t in ids]}}]})

        def answer(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}/v1"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def teacher(url: str, folder: Path, top_k: int | None = None, retries: int = 4) -> TeacherServer:
    own = PolicyConfig.model_validate({"name": url, "api": {"retries": retries}})
    return TeacherServer("teacher", own, load_tokenizer(folder), top_k, pause=0.01)


@pytest.mark.slow
async def test_a_server_that_fails_is_asked_again_and_its_numbers_are_at_the_tokens_that_an_engine_would_give_them(
    folder: Path, group: Group
) -> None:
    engine = LocalEngine(folder, EngineConfig(device="cpu"))
    with echoing(folder, failing=3) as url:
        asked = teacher(url, folder)
        try:
            await asked.start()
            assert asked.way == "echo"
            found = await PathScorer(asked.read).score([group], 512, 0)
            by_engine = await EngineScorer(engine).score([group], 512, 0)
        finally:
            await asked.close()
            await engine.close()
    assert found.keys() == by_engine.keys()
    for (_, number), values in found.items():
        node = group.sessions[0].nodes[number]
        expected = [-0.001 * t if used else 0.0 for t, used in zip(node.token_ids, node.trainable, strict=True)]
        assert values == pytest.approx(expected)


@pytest.mark.slow
async def test_a_server_that_goes_on_failing_is_infrastructure_and_so_is_one_that_is_not_there(
    folder: Path,
) -> None:
    with echoing(folder, failing=99) as url:
        asked = teacher(url, folder, retries=2)
        await asked.start()
        with pytest.raises(EngineError, match=r"policies.teacher=http.*answered 503"):
            await asked.read([5, 6, 7], 1.0, 1)
        await asked.close()
    gone = teacher(url, folder)
    with pytest.raises(EngineError):
        await gone.start()
    await gone.close()


@pytest.mark.slow
async def test_a_server_that_can_not_answer_is_refused_with_what_would_work(folder: Path, tmp_path: Path) -> None:
    """A chat API returns nothing of a prompt; texts of tokens can't name the most probable ones; ids mean others."""
    works = r"SGLang does .*/generate.*, and vLLM .*prompt_logprobs.*policies.NAME.model=FOLDER"
    other = tiny.build(tmp_path / "other", ["five of these read the make and 3 Two"], shape=tiny.TinyShape(vocab=280))
    for echoes, own, top_k, problem in (
        (False, folder, None, works),
        (True, folder, 4, f"does not return the 4 most probable tokens.*{works}"),
        (True, other, None, "its tokenizer is not the student's: token .*algo=sft"),
    ):
        with echoing(folder, echoes=echoes) as url:
            asked = teacher(url, own, top_k)
            with pytest.raises(ConfigError, match=problem):
                await asked.start()
            await asked.close()


@pytest.mark.slow
def test_a_run_asks_for_no_more_of_a_teachers_address_than_the_address(folder: Path) -> None:
    """It was refused without the model's name, as a partner that plays is."""
    settings = {"env.name": "calculator", "algo.name": "distill", "policies.teacher.model": "http://localhost:9/v1"}
    config = validate(spread({**settings, "model.name": str(folder)}), RunConfig)
    assert config.policies["teacher"].remote
    check_training(config)
