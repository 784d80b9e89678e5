"""A model whose images are computed otherwise than by transformers is refused before a run, with the numbers."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.config import AlgoConfig, RunConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import tiny, tiny_vision, vision, vision_trials
from agentrl.models.image_processor import ImageProcessor
from agentrl.models.vision_families import FAMILIES as KNOWN
from agentrl.overrides import validate
from agentrl.sessions.renderers.proof.images import prove_images
from agentrl.sessions.renderers.registry import get_renderer
from agentrl.train.display.console import Display
from agentrl.train.plan.model_checks import prove_architecture
from agentrl.train.trainers import proof
from agentrl.train.trainers.megatron.settings import TOWERS, MegatronConfig
from agentrl.train.trainers.megatron.table import deal, table
from agentrl.train.trainers.megatron.trainer import MegatronTrainer
from agentrl.train.trainers.proof import require
from agentrl.train.trainers.proof.comparison import compare
from agentrl.train.trainers.reference import random_forest
from agentrl.types import MAIN
from tests.train.backends.test_proof import checked
from tests.vision.models import FAMILIES


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_trees_with_images_are_computed_as_transformers_does_by_trainer_and_engine(family: str) -> None:
    config = FAMILIES[family].model().config
    on_ranks = ("megatron",) if family in TOWERS and importlib.util.find_spec("megatron") else ()
    for subject in ("torch", "local", *on_ranks):
        found = compare(config, subject=subject)
        assert found.passed, str(found)
        assert 0 < found.logp < 1e-5


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_a_tower_that_computes_something_else_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAMILIES["llava"].model().config.save_pretrained(tmp_path / "model")

    def mirrored(trunk: Any, frames: Any, grids: Any) -> Any:
        return KNOWN["llava"].encode(trunk, frames.flip(-1), grids)

    monkeypatch.setattr(vision, "FAMILIES", {**KNOWN, "llava": replace(KNOWN["llava"], encode=mirrored)})
    with pytest.raises(ConfigError, match=r"model='mine' \(llava\) can't be run by .* differ by up to [\d.]+ nats"):
        require(tmp_path / "model", "mine", subject="local")


def test_a_tower_without_a_place_is_refused_by_name_before_anything_starts(tmp_path: Path) -> None:
    config = FAMILIES["gemma3"].model().config
    config.save_pretrained(tmp_path)
    settings = {"env": {"name": "calculator"}, "model": str(tmp_path), "trainer": {"name": "megatron", "proof": False}}
    with pytest.raises(
        ConfigError, match=r"gemma3\) sees images, and trainer=megatron .* use trainer=fsdp or trainer=torch"
    ):
        prove_architecture(validate(settings, RunConfig).learners[MAIN], {}, tmp_path, Display(Console()), trains=True)
    with pytest.raises(InvalidInput, match="place for the tower of idefics3 and smolvlm only: use trainer=torch or"):
        MegatronTrainer(tmp_path, MegatronConfig(), AlgoConfig())
    forest = random_forest(random.Random(0), 40, seen=vision_trials.RandomImages(config))
    with pytest.raises(InvalidInput, match="trainer=megatron has no place for either"):
        table(forest, deal(forest, 1, 0, 1))


@pytest.mark.slow
def test_a_run_whose_engine_takes_no_images_says_so_before_it_starts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "require", lambda *given, **more: None)
    for name, warned in (("sglang", True), ("local", False)):
        printed = StringIO()
        settings = {"env": {"name": "calculator"}, "model": str(folder), "engine": {"name": name}}
        with Display(Console(file=printed, width=400)) as display:
            prove_architecture(validate(settings, RunConfig).learners[MAIN], {}, folder, display, trains=False)
        assert ("engine=sglang takes no images with a prompt" in printed.getvalue()) == warned
        assert "images: tokens at 2 turn boundaries" in printed.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [tiny.render([{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "3"}])] * 9
    return tiny_vision.build(tmp_path_factory.mktemp("seen") / "tiny", texts, 32)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_models_check_compares_renderer_trainer_and_the_folders_weights(folder: Path, tmp_path: Path) -> None:
    code, printed = checked(folder, "--trainer", "torch")
    assert code == 0, printed
    assert "✓ renderer: images: tokens at 2 turn boundaries, and pixels, are the processor's own" in printed
    assert "✓ trainer=torch: log-probabilities differ by up to" in printed
    assert "✓ trainer=torch: with the folder's weights log-probabilities differ by up to" in printed


@pytest.mark.slow
def test_a_renderer_that_shows_images_otherwise_than_the_processor_is_found_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, renderer = ImageProcessor.encode, get_renderer(str(folder))
    with monkeypatch.context() as changed:
        changed.setattr(ImageProcessor, "encode", lambda *given: encode(*given)[1:])
        assert "at token" in prove_images(renderer).fault
        assert renderer.name != get_renderer(str(folder)).name == "generic", "auto takes the one that does not differ"
    with monkeypatch.context() as changed:
        own = vision_trials.TRIALS["idefics3"]
        rounded = replace(own, given=lambda *given: {k: v * 0.5 for k, v in own.given(*given).items()})
        changed.setitem(vision_trials.TRIALS, "idefics3", rounded)
        assert "pixel_values of" in prove_images(renderer).fault
