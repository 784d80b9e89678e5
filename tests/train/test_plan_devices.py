"""The memory of devices in a dry run: who is on them, and what does not fit."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement.assignment import Assignment, Place
from agentrl.cluster.placement.gpus import MEMORY, measure_gpus, memory_of, query_gpus
from agentrl.errors import ConfigError
from agentrl.train.driver.setup import complete
from agentrl.train.plan.devices import Devices, devices_of, too_full
from agentrl.train.plan.dry_run import describe_run
from agentrl.train.plan.memory import GIB, EngineMemory, TrainerMemory
from agentrl.train.plan.shapes import KNOWN
from agentrl.train.plan.step import Rates
from tests.conftest import need

TRAINER = TrainerMemory(weights=10 * GIB, gradients=10 * GIB, optimizer=20 * GIB, activations=15 * GIB, logits=0.0)
ENGINE = EngineMemory(weights=16 * GIB, token=GIB / 1024, cache=0.0)
SESSION = 4096


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs of 80 GiB, as its `nvidia-smi` says; returns a folder with a model's config.json."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 81920 MiB\necho 81920 MiB\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    settings = asdict(KNOWN["qwen3-8b"])
    experts = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if k not in experts}))
    return tmp_path


def lines(model: Path, **settings: Any) -> list[str]:
    return list(describe_run(complete({"env": "calculator", "model": str(model), **settings}), Rates()))


@pytest.mark.slow
def test_gpus_are_those_that_nvidia_smi_shows(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert measure_gpus() == [80.0, 80.0]
    (gpus / "nvidia-smi").write_text("#!/bin/sh\necho '[N/A]'\n")
    assert measure_gpus() == [0.0]
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    assert query_gpus("name") == []


def test_a_nodes_gpu_memory_goes_by_the_type_that_ray_names() -> None:
    assert memory_of(["CPU", "GPU", "node:10.0.0.1", "accelerator_type:H100"]) == MEMORY["H100"]
    assert memory_of(["GPU", "accelerator_type:A100", "accelerator_type:A100-80G"]) == MEMORY["A100-80G"]
    assert memory_of(["GPU", "accelerator_type:V100"]) == 0.0, "of which there are several"


@pytest.mark.slow
def test_the_types_whose_memory_is_known_are_rays_names() -> None:
    need(find_spec("ray") is not None, "Ray's names of GPUs need Ray (the extra `ray`)")
    from ray.util.accelerators import accelerators

    assert set(MEMORY) <= {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA_")}


@pytest.mark.slow
def test_automatic_devices_are_the_gpus_of_this_machine_which_trainer_and_engine_share(gpus: Path) -> None:
    said = lines(gpus)
    assert {"this machine: trainer 0 on GPUs 0", "this machine: engine 0 on GPUs 0"} <= set(said)
    (on,) = (line for line in said if line.startswith("memory of this machine"))
    assert on.startswith("memory of this machine, GPUs 0: 1 x trainer, ")
    assert on.endswith("and their cache; of 80 GiB")
    (full, *_) = (line for line in said if line.startswith("warning: this machine, GPUs 0"))
    assert "a trainer rank computes with" in full
    assert "80 GiB" in full
    assert any(line == "warning: GPUs 1 of this machine are idle" for line in said)
    ranks = lines(gpus, trainer={"name": "fsdp"})
    assert {"this machine: trainer 0 on GPUs 0", "this machine: trainer 1 on GPUs 1"} <= set(ranks)


@pytest.mark.slow
def test_more_gpus_than_this_machine_has_are_refused(gpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"is to compute on 4 GPUs of this machine, and there are 2"):
        lines(gpus, trainer={"name": "megatron", "tensor_parallel": 4})


def test_devices_with_the_same_on_them_are_one_line_and_colocated_engines_are_told() -> None:
    nodes = [ClusterNode("a", 8, 4, gpu_memory=80.0), ClusterNode("b", 8, 2)]
    places = [Place("trainer", 0, "a", (0, 1)), Place("engine", 0, "a", (0, 1), colocated=True)]
    places += [Place("engine", 1, "a", (2,)), Place("engine", 2, "b", (0, 1)), Place("environments", 0, "b")]
    assert devices_of(Assignment(tuple(places)), nodes, here=GIB) == [
        Devices("a", (0, 1), 80 * GIB, 1, 1, sleeping=True),
        Devices("a", (2,), 80 * GIB, 0, 1),
        Devices("b", (0, 1), 0.0, 0, 1),
    ]
    beside = [Place("trainer", 0, "a"), Place("engine", 0, "a"), Place("engine", 1, "b")]
    here, there = devices_of(Assignment(tuple(beside)), nodes, here=GIB)
    assert (here, there) == (Devices("a", (), GIB, 1, 1), Devices("b", (), 0.0, 0, 1))


@pytest.mark.slow
def test_what_does_not_fit_on_a_device_is_named_with_what_is_there() -> None:
    def said(devices: Devices) -> list[str]:
        return list(too_full([devices], TRAINER, ENGINE, SESSION))

    assert said(Devices("a", (0,), 80 * GIB, 1, 1, sleeping=True)) == []
    assert said(Devices("a", (0,), 0.0, 1, 1)) == [], "its memory is not known"
    (trainer,) = said(Devices("a", (0, 1), 50 * GIB, 1, 0))
    assert trainer == "a, GPUs 0, 1: a trainer rank computes with 57 GiB in all, and there are 50 GiB"
    (engine,) = said(Devices("a", (0,), 21 * GIB, 0, 1))
    assert engine.startswith("a, GPUs 0: an engine's weights, 16 GiB, leave 1894 tokens of cache of 21 GiB, and")
    (waits,) = too_full([Devices("a", (0,), 21 * GIB, 0, 1)], TRAINER, ENGINE, 512, 8)
    assert waits == "a, GPUs 0: an engine's cache holds 1894 tokens, 3 of its 8 sessions of 512 tokens; the others wait"
    assert list(too_full([Devices("a", (0,), 21 * GIB, 0, 1)], TRAINER, ENGINE, 512, 3)) == []
    awake, beside = said(Devices("a", (0,), 60 * GIB, 1, 1))
    assert "73 GiB in all" in awake, "an engine that does not sleep keeps its weights"
    assert "leave 2048 tokens of cache of 60 GiB beside the trainer's 42 GiB" in beside


def test_teachers_are_counted_where_they_are_and_what_no_longer_fits_beside_them_is_told(gpus: Path) -> None:
    """A teacher's four bytes a weight stay from the first step on: on the first GPU, or where its engine is."""
    on_gpu = lines(gpus, algo="distill", policies={"teacher": {"model": str(gpus)}})
    on_cpu = lines(gpus, algo="distill", policies={"teacher": {"model": str(gpus), "engine": {"device": "cpu"}}})
    weights = 4 * KNOWN["qwen3-8b"].parameters / GIB
    for told in (on_gpu, on_cpu):
        (line,) = [each for each in told if each.startswith("memory of the teacher teacher: ")]
        assert weights < float(line.split(": ")[1].split()[0]) < weights + 8
    assert any("GPUs 0: " in line and "other models, " in line for line in on_gpu)
    assert any("other models, " in line and "GPUs" not in line for line in on_cpu)
    assert not any("other models, " in line for line in lines(gpus))
    at_url = lines(gpus, algo="distill", policies={"teacher": "http://localhost:9/v1"})
    assert not any("memory of the teacher" in line for line in at_url)


def test_a_teacher_takes_from_the_cache_of_engines_beside_it() -> None:
    alone = Devices("node", (0,), 80 * GIB, 0, 1)
    beside = Devices("node", (0,), 80 * GIB, 0, 1, models=30 * GIB)
    assert alone.cache(TRAINER, ENGINE) > beside.cache(TRAINER, ENGINE)
    assert not list(too_full([alone], TRAINER, ENGINE, SESSION))
    assert list(too_full([Devices("node", (0,), 80 * GIB, 0, 1, models=70 * GIB)], TRAINER, ENGINE, SESSION))


def test_policies_beside_the_main_one_are_counted_with_their_trainers_and_engines(gpus: Path) -> None:
    """A frozen one has an engine, one that learns a trainer besides, earlier versions an engine each."""
    game = {"env": "kuhn_poker", "agents": {"second": "rival"}, "warm_start": {"steps": 0}}
    model = {"model": str(gpus), "engine": {"device": "cpu", "dtype": "float32"}}
    weights = 4 * KNOWN["qwen3-8b"].parameters / GIB

    def memory(**policies: Any) -> float:
        (line,) = [each for each in lines(gpus, **game, policies=policies) if "memory of policies.rival" in each]
        return float(line.split(": ")[1].split()[0])

    frozen = memory(rival=model)
    assert frozen == pytest.approx(weights, rel=0.02)
    assert memory(rival={"name": "past", "engine": model["engine"]}) == pytest.approx(5 * weights, rel=0.02)
    assert memory(rival=model | {"trainer": "torch"}) > 4 * weights
