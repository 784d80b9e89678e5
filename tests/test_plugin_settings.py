"""A section of the configuration belongs to the plug-in that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, InvalidInput, UnknownName
from agentrl.overrides import applicable, fields, merge_settings, validate
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.weights import TRANSPORTS, is_direct
from agentrl.train.driver.setup import complete
from agentrl.train.trainers import TRAINERS

ENGINE = '''
from agentrl.config import EngineConfig
from agentrl.rollout.engines.plugin import EnginePlugin

class Settings(EngineConfig):
    my_setting: int = 1
    """What it is for."""

class Mine(EnginePlugin):
    settings = Settings

ENGINE = Mine()
NOTHING = 3
'''


def build(*words: str) -> RunConfig:
    return validate(merge_settings(["env=calculator", *words]), RunConfig)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(ENGINE)
    return f"{tmp_path}/mine.py:ENGINE"


def test_a_plug_in_from_a_file_brings_settings_that_are_checked_listed_and_saved(mine: str) -> None:
    config = build(f"engine={mine}", "engine.my_setting=3", "engine.max_batch=2")
    assert (config.engine.model_dump()["my_setting"], config.engine.max_batch) == (3, 2)
    assert ("engine.my_setting", "What it is for.") in [
        (key, doc) for key, _, doc in fields(tree={"engine": {"name": mine}})
    ]
    assert validate(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))), RunConfig) == config
    with pytest.raises(ConfigError, match=r"engine\.my_setting='x'"):
        build(f"engine={mine}", "engine.my_setting=x")
    with pytest.raises(ConfigError, match=r"did you mean 'engine\.my_setting'\?"):
        build(f"engine={mine}", "engine.my_seting=3")


def test_a_setting_of_another_plug_in_is_refused_as_such() -> None:
    with pytest.raises(
        ConfigError, match=r"trainer\.ranks=2 belongs to trainer=fsdp and trainer=megatron, not trainer=torch"
    ):
        build("trainer.ranks=2")
    with pytest.raises(ConfigError, match=r"engine\.proof=True belongs to engine=local, not engine=sglang"):
        build("engine=sglang", "engine.proof=true")
    with pytest.raises(ConfigError, match=r"unknown setting 'engine\.urll'.*'engine\.url'"):
        build("engine=vllm", "engine.urll=1")
    for name in ("top_p", "min_p"):  # as clients' requests and other trainers' settings have it
        with pytest.raises(ConfigError, match=rf"unknown setting 'sampling' .*did you mean 'rollout\.{name}'"):
            build(f"sampling.{name}=0.9")


def test_a_plug_in_of_a_section_within_another_has_its_settings_refused_and_replaced_in_the_same_way() -> None:
    with pytest.raises(
        ConfigError, match=r"sampler\.weight=0\.2 belongs to rollout\.sampler=difficulty, not .*=shuffled"
    ):
        build("rollout.sampler.weight=0.2")
    saved = {"rollout": {"staleness": 1, "sampler": {"name": "difficulty", "weight": 0.2}}}
    kept = applicable(saved, {"rollout": {"sampler": "shuffled"}})
    assert kept == {"rollout": {"staleness": 1, "sampler": {"name": "difficulty"}}}


def test_a_transport_has_settings_of_its_own_and_auto_has_those_of_a_disk(tmp_path: Path) -> None:
    local, server = build("engine=local"), build("engine=sglang")
    assert is_direct(local.weights, local.engine)
    assert not is_direct(server.weights, server.engine)
    assert not is_direct(build("weights.delta=true").weights, local.engine)
    with pytest.raises(ConfigError, match=r"weights\.host='a' belongs to weights\.transport=distributed, not .*=auto"):
        build("weights.host=a")
    with pytest.raises(ConfigError, match=r"weights\.delta=True belongs to .*=auto and .*=disk, not .*=ipc"):
        build("weights.transport=ipc", "weights.delta=true")
    with pytest.raises(UnknownName, match=r"unknown weight transport 'dsk'; did you mean 'disk'"):
        build("weights.transport=dsk")
    with pytest.raises(ConfigError, match=r"this is a section; set its fields: weights\.transport"):
        build("weights=disk")
    base = build("weights.transport=ipc", "weights.bucket_mb=3").weights.model_dump()
    assert "host" not in base
    server = build("engine=sglang", "weights.delta=true", f"weights.dir={tmp_path}")
    made = TRANSPORTS.find("auto").make(server.weights, tmp_path, server.engine, 1)
    assert type(made).__name__ == "DeltaTransport"


def test_what_is_added_to_a_plug_ins_settings_keeps_the_others_of_the_same() -> None:
    """`resume=RUN engine.max_batch=3` took the default engine for the chosen one and lost the saved settings."""
    saved = {"engine": {"name": "sglang", "start_timeout": 9.0}}
    assert applicable(saved, {"engine": {"max_batch": 3}}) == saved
    assert applicable(saved, {"engine": "local"}) == {"engine": {"name": "sglang"}}


def test_a_policys_own_plug_in_is_replaced_without_its_settings_too() -> None:
    """`resume=RUN policies.b.algo=grpo` listed the settings of the saved algorithm as unknown ones."""
    saved = {
        "policies": {"a": "expert", "b": {"temperature": 0.5, "algo": {"name": "magrpo", "tree": True, "lr": 0.1}}}
    }
    kept = applicable(saved, {"policies": {"a": {"temperature": 1.0}, "b": {"algo": "grpo"}}})
    assert kept["policies"] == {"a": "expert", "b": {"temperature": 0.5, "algo": {"name": "magrpo", "lr": 0.1}}}
    assert applicable(saved, {"policies": {"b": {"algo": {"gamma": 0.5}}}}) == saved


def test_what_a_recipe_says_of_the_plug_in_that_it_expects_does_not_bind_another(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import agentrl\n"
        "class Shop(agentrl.Env):\n"
        "    @classmethod\n"
        "    def recipe(cls, model):\n"
        "        return {'engine.proof': False, 'engine.max_batch': 7, 'rollout.groups_per_step': 3}\n"
        "    def tasks(self, split='train'): return [{'a': 1}]\n"
        "    def reset(self, task, *, seed=None): return 'hello'\n"
    )
    env = {"name": f"{tmp_path}/shop.py:Shop"}
    assert complete({"env": env}).engine.model_dump()["proof"] is False
    assert complete({"env": env}).algo.minibatches == 3
    server = complete({"env": env, "engine": "sglang"}).engine
    assert (type(server), server.max_batch) == (ServerConfig, 7)


class OneUpdate:
    """Stands for a trainer of somebody's own that knows nothing of parts."""


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({}, 4),
        ({"rollout": {"groups_per_step": 2}}, 2),
        ({"trainer": f"{__name__}:OneUpdate"}, 1),
        ({"trainer": {"name": f"{__name__}:OneUpdate"}, "algo": "gspo"}, 1),
        ({"model": "smollm2-135m"}, 1),
    ],
)
def test_the_tiny_models_minibatches_are_no_more_than_the_users_groups_and_trainer_allow(
    given: dict[str, object], parts: int
) -> None:
    assert complete({"env": "castle", **given}).algo.minibatches == parts


def test_minibatches_that_the_user_sets_are_refused_where_no_step_can_have_them() -> None:
    with pytest.raises(ConfigError, match=r"algo\.minibatches=3: .*use algo\.minibatches<=2"):
        complete({"env": "castle", "algo": {"minibatches": 3}, "rollout": {"groups_per_step": 2}})


def test_names_and_import_paths_lead_to_one_plug_in_and_mistakes_say_what_there_is(mine: str, tmp_path: Path) -> None:
    assert TRAINERS.find("agentrl.train.trainers.torch_trainer.plugin:TRAINER") is TRAINERS.find("torch")
    with pytest.raises(UnknownName, match=r"unknown engine 'lokal'; did you mean 'local'\?"):
        build("engine=lokal")
    with pytest.raises(UnknownName, match=r"there is no 'ENGINES' in .*; did you mean 'ENGINE'\?"):
        build(f"engine={mine}S")
    with pytest.raises(ConfigError, match="is 3, which is no engine"):
        build(f"engine={tmp_path}/mine.py:NOTHING")
    with pytest.raises(InvalidInput, match="no valid engine name"):
        ENGINES.register("a:b", mine)
    (tmp_path / "wrong.py").write_text("class ENGINE:\n    settings = 3\n    def __init__(self, *_): ...\n")
    with pytest.raises(ConfigError, match=r"its attribute `settings` is 3"):
        build(f"engine={tmp_path}/wrong.py:ENGINE")


@pytest.mark.slow
def test_a_plug_in_that_cannot_be_imported_says_so_in_the_list_and_hurts_no_other(
    forget_names: Callable[[Any], None],
) -> None:
    forget_names(ENGINES)
    ENGINES.register("broken", "no_such_module_at_all:ENGINE")
    infos = {info.name: info.error for info in ENGINES.list()}
    assert "no_such_module_at_all" in infos["broken"]
    assert infos["local"] == infos["sglang"] == ""
    with pytest.raises(ConfigError, match=r"engine\.proof=True belongs to engine=local"):
        build("engine=vllm", "engine.proof=true")
