"""An engine for another server is one file: examples/plugins/completions_engine.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("uvicorn")

import agentrl
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.models import tiny
from agentrl.models.tokenizers import load_tokenizer
from agentrl.overrides import typed, validate
from agentrl.rollout.engines import check_engine as check_settings
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.contract import CHECKS, EngineSubject
from agentrl.sessions.store.store import Store
from tests.plugins.completions_server import completions_server

NAME = f"{Path(__file__).parents[2]}/examples/plugins/completions_engine.py:ENGINE"
TEXTS = [
    f"<|im_start|>user\nwhat is {n} + {n}?<|im_end|>\n<|im_start|>assistant\n{2 * n}<|im_end|>\n" for n in range(60)
]
PROMISES = (
    "chunks_add_up_to_the_turn",
    "limits_are_kept",
    "stop_tokens_end_a_turn",
    "logprobs_are_those_of_scoring",
    "closing_is_final",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("model") / "tiny", TEXTS, shape=tiny.TinyShape(vocab=320, context=1024))


@pytest.mark.slow
async def test_it_keeps_the_engines_contract(folder: Path) -> None:
    with completions_server(folder) as url:
        config = validate(
            typed(["env=calculator", f"engine={NAME}", f"engine.url={url}", "engine.device=cpu"]), RunConfig
        )
        subject = EngineSubject(make_engine(config.engine, folder), load_tokenizer(folder))
        for name in PROMISES:
            await CHECKS[name](subject)


@pytest.mark.slow
def test_its_settings_are_checked(folder: Path) -> None:
    config = validate(typed(["env=calculator", f"engine={NAME}"]), RunConfig)
    with pytest.raises(ConfigError, match=r"engine\.url .* is required"):
        check_settings(config.engine, config.fleet)
    with pytest.raises(ConfigError, match=r"did you mean 'engine\.load_route'"):
        validate(typed(["env=calculator", f"engine={NAME}", "engine.load_rout=/load"]), RunConfig)


@pytest.mark.slow
def test_a_run_trains_with_it(folder: Path, tmp_path: Path) -> None:
    with completions_server(folder) as url:
        result = agentrl.train(
            "calculator",
            model=str(folder),
            engine={"name": NAME, "url": url, "load_route": "/load", "device": "cpu"},
            trainer={"device": "cpu", "proof": False},
            rollout={"groups_per_step": 2, "group_size": 2, "turn_tokens": 16, "session_tokens": 2048},
            weights={"start_tokens": 64},
            eval={"tasks": 2},
            steps=1,
            run_dir=str(tmp_path / "run"),
        )
    assert result.worked
    with Store(tmp_path / "run" / "sessions.db") as store:
        versions = {span.version for s in store.sessions() for node in s.nodes for span in node.versions}
    assert 0 in versions
