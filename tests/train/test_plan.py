"""Plans: counts against real models and trainers, layouts that fit, tables in the documentation, and dry runs."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster import ClusterNode
from agentrl.config import AlgoConfig, FleetConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import tiny
from agentrl.models.registry import cache_folder
from agentrl.train.algorithms import make_algorithm
from agentrl.train.driver.setup import complete
from agentrl.train.plan.devices import size
from agentrl.train.plan.dry_run import describe_run
from agentrl.train.plan.layouts import ALIKE, PlanConfig, rank_layouts
from agentrl.train.plan.memory import GIB, OVERHEAD, Numbers, Split, own_parameters, trainer_memory
from agentrl.train.plan.report import describe_plan
from agentrl.train.plan.shapes import KNOWN, LATENT, Shape, read_shape, shape_of
from agentrl.train.plan.step import Rates, StepTime, in_words
from agentrl.train.trainers import TRAINERS
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from tests.command_line import run_agentrl

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
PLUGIN = "tests/cluster/scores.py:Sine"
MODELS = {"llama": 0, "mistral": 0, "qwen2": 0, "qwen3": 0, "qwen3_moe": 8}


def settings_of(shape: Shape) -> dict[str, object]:
    """What the model's config.json has: sizes of parts that it lacks are not in it."""
    settings = {name: value for name, value in asdict(shape).items() if value or isinstance(value, bool)}
    settings.pop("tower", None)
    if shape.model_type in ("glm4_moe", *LATENT):
        settings["n_routed_experts"] = settings.pop("num_experts")
        settings["first_k_dense_replace"] = shape.first_k_dense_replace
    else:
        del settings["use_qk_norm"]
    if shape.kv_lora_rank:
        settings["num_key_value_heads"] = shape.num_attention_heads
        settings["qk_nope_head_dim"] = settings.pop("head_dim") - shape.qk_rope_head_dim
    return settings


def real_parameters(settings: dict[str, object]) -> int:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = dict(settings)
    if sizes["model_type"] == "kimi_k2":  # which transformers has under this name
        sizes["model_type"] = "deepseek_v3"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(sizes.pop("model_type"), **sizes))
    return sum(parameter.numel() for parameter in model.parameters())


SEEING = {"qwen2.5-vl-3b": 2048, "qwen2.5-vl-7b": 3584}
"""Models with a tower, and the width of its tokens."""
TOWER = {"hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16}


@pytest.mark.parametrize("name", sorted(SEEING))
@pytest.mark.slow
def test_parameters_of_models_that_see_are_those_of_transformers(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    shape = KNOWN[name]
    text = settings_of(replace(shape, tower=0))
    vision = TOWER | {"out_hidden_size": SEEING[name]}
    config = AutoConfig.for_model("qwen2_5_vl", text_config=text, vision_config=vision)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = shape.tie_word_embeddings
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert read_shape(config.to_dict(), "x").parameters == shape.parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN.keys() - SEEING.keys()))
def test_parameters_of_the_known_models_are_those_of_transformers(name: str) -> None:
    settings = settings_of(KNOWN[name])
    assert KNOWN[name].parameters == real_parameters(settings)
    assert read_shape(settings, name) == KNOWN[name]


@pytest.mark.parametrize("kind", sorted(MODELS))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.slow
def test_parameters_of_each_kind_are_counted_from_its_config_json(kind: str, tied: bool, bias: bool) -> None:
    own_bias = bias and kind in ("llama", "qwen3", "qwen3_moe")
    shape = Shape(kind, 48, 3, 6, 2, 8, 80, 101, tied, own_bias, MODELS[kind], MODELS[kind] // 4, MODELS[kind] * 3)
    settings = settings_of(shape)
    assert read_shape(settings, "x").parameters == shape.parameters == real_parameters(settings)


def test_a_config_json_that_transformers_writes_is_read(tmp_path: Path) -> None:
    """It writes the number of experts under another name than the published models have."""
    from transformers import AutoConfig

    for kind, experts in MODELS.items():
        shape = Shape(kind, 48, 3, 6, 2, 8, 80, 101, True, False, experts, experts // 4, experts * 3)
        settings = settings_of(shape)
        AutoConfig.for_model(settings.pop("model_type"), **settings).save_pretrained(tmp_path / kind)
        assert shape_of(tmp_path / kind) == shape


def test_what_can_not_be_planned_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no config\.json there.*qwen3-8b"):
        shape_of(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"model_type='mamba' can't be planned; what can: llama"):
        read_shape({"model_type": "mamba"}, "x")
    with pytest.raises(ConfigError, match="layers without experts among others"):
        read_shape({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "x")
    with pytest.raises(InvalidInput, match=r"hidden_size=None, not a positive integer"):
        read_shape({"model_type": "llama"}, "x")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match="unreadable"):
        shape_of(tmp_path)


def hold_against_the_torch_trainer(folder: Path) -> None:
    """Bytes of a trainer's tensors after an update, and what is counted from config.json."""
    import torch

    from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

    trainer = TorchTrainer(folder, TorchConfig(threads=1), AlgoConfig())
    parameters = list(trainer.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    trainer.optimizer.adam.step()
    found = trainer_memory(shape_of(folder), Split(), Numbers("torch", "float32"), 1024)
    held = trainer.optimizer.adam.state_dict()["state"].values()
    assert found.weights == sum(each.nbytes for each in parameters)
    assert found.gradients == sum(each.grad.nbytes for each in parameters if each.grad is not None)
    state = sum(each.nbytes for moments in held for each in moments.values())
    assert found.optimizer == pytest.approx(state, rel=0.01)


def test_the_tiny_models_memory_is_that_of_the_torch_trainers_tensors(tmp_path: Path) -> None:
    hold_against_the_torch_trainer(tiny.build(tmp_path / "model", ["<|im_start|>user\nhi<|im_end|>\n"]))


@pytest.mark.slow
def test_smollm2s_memory_is_that_of_the_torch_trainers_tensors() -> None:
    folder = cache_folder() / "smollm2-135m"
    if not folder.is_dir():
        pytest.skip("smollm2-135m is not in the cache (agentrl models get smollm2-135m)")
    hold_against_the_torch_trainer(folder)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_parallel_ranks_keep_their_share_of_the_parameters(name: str) -> None:
    shape = KNOWN[name]
    for tensor, expert in ((2, 1), (4, 8)):
        shared, experts = own_parameters(shape, Split(tensor, expert=expert if shape.num_experts else 1))
        assert shared * tensor == pytest.approx(shape.parameters - shape.num_hidden_layers * shape.experts)
        assert experts * (expert if shape.num_experts else 1) == shape.num_hidden_layers * shape.experts
    whole = trainer_memory(shape, Split(), Numbers(), 4096)
    for split in (Split(data=8), Split(tensor=2, data=4), Split(pipeline=2, data=4)):
        assert trainer_memory(shape, split, Numbers(), 4096).optimizer < whole.optimizer / 4
    assert trainer_memory(shape, Split(), Numbers(recompute=True), 4096).activations < whole.activations / 3


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes"), [("qwen3-0.6b", 1), ("qwen3-8b", 2), ("qwen3-30b-a3b", 4)])
def test_planned_layouts_fit_are_placed_and_are_ranked(name: str, nodes: int) -> None:
    config = PlanConfig(model=name, nodes=nodes, environments=4, show=8)
    found = rank_layouts(KNOWN[name], config, config.described)
    best = min(each.time.total for each in found)
    steps = [int(math.log(each.time.total / best, ALIKE)) for each in found]
    assert steps == sorted(steps), "the fastest first, but for times that are about the same"
    for each in found:
        assert each.trainer.total + OVERHEAD <= config.memory * GIB
        assert each.engine.tokens >= config.work.length
        assert each.assignment is not None
        assert len(each.assignment.of("trainer")) * each.split.tensor == each.split.ranks
        placed = each.assignment.of("engine")
        assert len(placed) == each.engines
        assert sum(engine.colocated for engine in placed) == each.colocated
        if each.colocated:
            kept = each.trainer.resident + each.engine.weights + each.engine.cache
            assert kept + OVERHEAD <= config.memory * GIB
    more = config.model_copy(update={"nodes": 2 * nodes})
    assert rank_layouts(KNOWN[name], more, more.described)[0].time.total <= ALIKE * found[0].time.total


def test_layouts_of_fsdp_are_searched_as_well_and_its_ranks_share_all_they_keep() -> None:
    config = PlanConfig(model="qwen3-8b", nodes=2, trainer="fsdp", show=20)
    found = rank_layouts(KNOWN["qwen3-8b"], config, config.described)
    assert {each.split.data for each in found} == {each.split.ranks for each in found} >= {8, 16}
    assert all(each.settings.startswith("trainer=fsdp ") for each in found)
    most = {ranks: max(each.trainer.optimizer for each in found if each.split.ranks == ranks) for ranks in (8, 16)}
    assert most[8] == 2 * most[16]


def test_engines_apart_generate_while_the_trainer_learns_and_all_of_them_what_is_left() -> None:
    together, train, alone = 30.0, 20.0, 60.0
    assert StepTime(together, train, 1.0).total == together + train + 1.0, "colocated: one after the other"
    assert StepTime(together, train, 1.0, together).total == max(together, train) + 1.0, "disaggregated: beside it"
    assert StepTime(together, train, 1.0, alone).total == train + together * (1 - train / alone) + 1.0
    assert StepTime(together, 2 * alone, 1.0, alone).total == 2 * alone + 1.0, "nothing is left"
    config = PlanConfig(model="qwen3-8b", nodes=2, show=30)
    found = rank_layouts(KNOWN[config.model], config, config.described)
    mixed = [each for each in found if each.layout == "mixed"]
    assert mixed
    for each in mixed:
        assert 0 < each.colocated < each.engines
        settings = f"fleet.colocated=true fleet.colocated_engines={each.colocated} rollout.staleness=1"
        assert each.settings.endswith(settings)
        words = dict(word.split("=") for word in each.settings.split() if word.startswith(("fleet", "rollout")))
        fleet = {name.partition(".")[2]: value for name, value in words.items() if name.startswith("fleet")}
        assert FleetConfig.model_validate(fleet).shared == each.colocated


def test_seconds_are_written_as_people_do() -> None:
    written = {0.0312: "0.0312 s", 9.96: "9.96 s", 59.4: "59.4 s", 59.6: "1 min", 200.2: "3 min 20 s"}
    written |= {3600.0: "1 h", 3901.0: "1 h 5 min", 90000.0: "25 h"}
    assert {seconds: in_words(seconds) for seconds in written} == written


def test_offloaded_moments_come_back_when_activations_are_gone() -> None:
    kept, moved = (
        trainer_memory(KNOWN["qwen3-8b"], Split(data=4), Numbers(offloaded=there), 4096) for there in (False, True)
    )
    assert moved.resident == pytest.approx(kept.resident - kept.optimizer * 8 / 12), "the float32 copies stay"
    passing = moved.activations + moved.logits
    assert moved.total == moved.resident + max(passing, moved.updating)
    assert moved.updating + moved.optimizer == pytest.approx(kept.optimizer)


def test_a_model_that_fits_nowhere_is_refused_with_what_it_takes() -> None:
    config = PlanConfig(model="qwen3-235b-a22b", nodes=2)
    with pytest.raises(ConfigError, match=r"there are 16 GPUs of 80 GiB, 8 on a node, 1280 GiB in all.*take 3941 GiB"):
        rank_layouts(KNOWN[config.model], config, config.described)


@pytest.mark.slow
def test_the_tables_of_the_documentation_are_what_plan_prints() -> None:
    text = PAGE.read_text()
    commands = re.findall(r"^agentrl plan (.*)$", text, re.MULTILINE)
    assert {command.split()[0] for command in commands} <= {f"model={name}" for name in KNOWN}
    for command in commands:
        words = dict(word.split("=", 1) for word in command.split())
        assert "\n".join(describe_plan(PlanConfig.model_validate(words))) in text


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
def test_a_dry_run_says_who_is_where_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "env=calculator", "dry_run=true", "cluster.environments=1", "rollout.staleness=1"]
    code = run_agentrl(*words)
    said = capsys.readouterr().out
    assert code == 0
    for part in ("trainer 0", "engine 0", "environments 0", "weights 2.19 MiB", "activations", "key-value cache"):
        assert part in said
    for part in ("of sessions and forests", "of weights for each", "a step: about"):
        assert part in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_needs_no_more_of_a_model_than_its_config_json(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(settings_of(KNOWN["qwen3-8b"])))
    run = {"env": "calculator", "dry_run": True}
    lines = [list(describe_run(complete({**run, "model": str(model)}))) for model in (file, tmp_path)]
    assert lines[0][1] == lines[1][1] == "model: 8,190,735,360 parameters, 36 layers of 4096"
    sharded = "\n".join(describe_run(complete({**run, "model": str(file), "trainer": {"name": "fsdp", "ranks": 4}})))
    for part in ("trainer 3", "weights 7.63 GiB, gradients 7.63 GiB, optimizer 15.3 GiB", "gathered", "data-parallel"):
        assert part in sharded
    uneven = complete({**run, "model": str(file), "trainer": {"name": "megatron", "tensor_parallel": 3}})
    with pytest.raises(ConfigError, match="tensor_parallel=3 does not divide the model's 32 attention heads"):
        list(describe_run(uneven))


@pytest.mark.parametrize("kind", ["gemma2", "mamba"])
def test_a_dry_run_of_a_model_that_is_not_counted_says_so_and_gives_its_places(tmp_path: Path, kind: str) -> None:
    """It was an error, of models that train."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind, "hidden_size": 8, "num_hidden_layers": 1}))
    run = {"env": "calculator", "dry_run": True, "model": str(file)}
    said = "\n".join(describe_run(complete(run | {"trainer": {"name": "fsdp", "ranks": 2}}), Rates()))
    assert f"warning: model={str(file)!r}: model_type={kind!r} can't be planned" in said
    for part in ("memory and time are not told", "trainer 1", "engine 0", "of sessions and forests"):
        assert part in said
    assert "a step: about" not in said
    with pytest.raises(ConfigError, match=rf"num_attention_heads, and .*\(model_type='{kind}'\) has None"):
        list(describe_run(complete(run | {"trainer": {"name": "megatron"}}), Rates()))


@pytest.mark.slow
def test_a_critic_with_a_trunk_of_its_own_takes_as_much_as_the_policy_that_learns(tmp_path: Path) -> None:
    (file := tmp_path / "config.json").write_text(json.dumps(settings_of(KNOWN["qwen3-0.6b"])))
    run = {"env": "calculator", "dry_run": True, "model": str(file), "trainer": {"name": "torch"}}
    found = {}
    for trunk in ("policy", "own"):
        config = complete({**run, "algo": {"name": "ppo", "value_trunk": trunk}})
        numbers = TRAINERS.find("torch").numbers(config.trainer, make_algorithm(config.algo))
        found[trunk] = trainer_memory(KNOWN["qwen3-0.6b"], Split(), numbers, 1024)
    own = found["own"]
    assert own.critic == own.weights + own.gradients + own.optimizer
    assert own.total == found["policy"].total + own.critic
    assert f"critic {size(own.critic)}" in "\n".join(describe_run(config, Rates()))
    sharded = complete({**run, "algo": {"name": "ppo", "value_trunk": "own"}, "trainer": {"name": "fsdp"}})
    with pytest.raises(ConfigError, match=r"value_trunk=own: trainer=fsdp has one model"):
        list(describe_run(sharded, Rates()))


def test_a_dry_run_places_reward_workers_on_gpus_of_their_own() -> None:
    nodes = [ClusterNode("a", 8.0, 1), ClusterNode("b", 8.0, 3)]
    cluster = {"name": "ray", "rewards": 2, "resources": {"rewards": {"gpus": 1}}}
    run = {"env": "calculator", "dry_run": True, "rewards": {"service": PLUGIN}, "cluster": cluster}
    run |= {"engine": {"device": "cuda"}, "trainer": {"device": "cuda"}}
    said = "\n".join(describe_run(complete(run), Rates(), nodes))
    placed = re.findall(r"(\w): (trainer|engine|rewards) \d on GPUs (\d)$", said, re.MULTILINE)
    assert sorted(role for _, role, _ in placed) == ["engine", "rewards", "rewards", "trainer"]
    assert len({(node, gpu) for node, _, gpu in placed}) == 4
    assert "environments -> reward workers: " in said
    assert "are idle" not in said


def test_a_dry_run_places_trainer_and_engine_of_each_policy_that_learns() -> None:
    """Another trainer on CPUs has a place too, of its own kind."""
    nodes = [ClusterNode("a", 8.0, 2), ClusterNode("b", 8.0, 2)]
    run = {"env": "examples/several_agents/demand.py:Demand", "agents": {"right": "other"}, "dry_run": True}
    run |= {"engine": {"device": "cuda"}, "trainer": {"device": "cuda"}, "cluster": {"name": "ray"}}
    for trainer, gpus in (
        ("cuda", ["engine", "engine", "trainer", "trainer"]),
        ("cpu", ["engine", "engine", "trainer"]),
    ):
        other = {"trainer": {"name": "torch", "device": trainer}, "engine": {"device": "cuda"}}
        said = "\n".join(describe_run(complete(run | {"policies": {"other": other}}), Rates(), nodes))
        placed = re.findall(r"(\w): (trainer|engine) (\d)(?: on GPUs (\d))?$", said, re.MULTILINE)
        assert sorted((role, number) for _, role, number, _ in placed) == [
            *(("engine", "0"), ("engine", "1"), ("trainer", "0"), ("trainer", "1")),
        ]
        assert sorted(role for _, role, _, gpu in placed if gpu) == gpus
        on_gpus = [(node, gpu) for node, _, _, gpu in placed if gpu]
        assert len({*on_gpus}) == len(on_gpus)


def test_a_dry_run_on_one_machine_says_which_processes_each_policy_that_learns_has() -> None:
    here = [ClusterNode("a", 8.0, 0)]
    run = {"env": "examples/several_agents/demand.py:Demand", "agents": {"right": "other"}, "dry_run": True}
    other: dict[str, Any] = {"trainer": {"name": "megatron", "tensor_parallel": 2}, "engine": {"process": "own"}}
    said = [*describe_run(complete(run | {"policies": {"other": other}}), Rates(), here)]
    assert [line for line in said if " learns: " in line] == [
        "main learns: trainer=torch in the loop's process, engine=local in the loop's",
        "other learns: trainer=megatron in 2 processes of its own, engine=local in one of its own",
    ]
    one = [*describe_run(complete(run | {"agents": {}}), Rates(), here)]
    assert not [line for line in one if " learns: " in line]


def test_a_dry_run_says_where_gateways_are() -> None:
    nodes = [ClusterNode("a", 8.0, 0, {"sandbox": 8.0}), ClusterNode("b", 8.0, 0, {"front": 2.0})]
    resources = {"gateway": {"custom": {"front": 1}}, "environments": {"custom": {"sandbox": 1}}}
    cluster = {"name": "ray", "environments": 1, "resources": resources}
    run = {"env": "calculator", "dry_run": True, "agent": "solve"}
    apart = "\n".join(describe_run(complete(run | {"cluster": cluster | {"gateways": 2}}), Rates(), nodes))
    placed = re.findall(r"^(\w): (environments|gateway) (\d)$", apart, re.MULTILINE)
    assert sorted(placed) == [("a", "environments", "0"), ("b", "gateway", "0"), ("b", "gateway", "1")]
    assert "gateway workers -> environments: " in apart
    beside = "\n".join(describe_run(complete(run | {"cluster": cluster}), Rates(), nodes))
    assert "a: environments 0, gateway\n" in beside


@pytest.mark.slow
def test_more_workers_than_the_machine_has_room_for_are_refused() -> None:
    run = complete({"env": "calculator", "dry_run": True, "cluster": {"environments": 10_000}})
    with pytest.raises(ConfigError, match=r"10000 CPUs in all.*What would fit: cluster\.environments="):
        list(describe_run(run))
    serving = complete({"env": "calculator", "dry_run": True, "cluster": {"gateways": 10_000}, "agent": "solve"})
    with pytest.raises(ConfigError, match=r"10000 CPUs in all.*What would fit: cluster\.gateways="):
        list(describe_run(serving))
    scoring = complete({"env": "calculator", "dry_run": True, "cluster": {"rewards": 10_000}, "rewards": {"s": PLUGIN}})
    with pytest.raises(ConfigError, match=r"10000 CPUs in all.*What would fit: cluster\.rewards="):
        list(describe_run(scoring))


def test_a_run_on_data_is_planned_without_an_engine(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Ho"}]}\n'
    )
    said = "\n".join(describe_run(complete({"data": str(file), "model": "tiny"}), Rates()))
    assert "memory of a trainer rank" in said
    assert "engine" not in said
    assert "generate" not in said


def test_a_run_whose_trainer_can_not_train_the_algorithm_is_refused_as_when_it_starts(tmp_path: Path) -> None:
    """A dry run described reward models with an adapter, which the run itself refuses."""
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    config = complete({"algo": "reward_model", "data": str(file), "model": "tiny", "lora": {"rank": 8}})
    with pytest.raises(ConfigError, match="trains whole models"):
        list(describe_run(config, Rates()))
