"""A setting that was given and has no effect in the run is refused, or told of where it harms nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from rich.console import Console

from agentrl.config import RunConfig, Section
from agentrl.config.unused import read_condition
from agentrl.errors import ConfigError
from agentrl.overrides import parse_words, validate
from agentrl.rollout.workers.serve_workers import serve_command
from agentrl.train.algorithms import ALGORITHMS
from agentrl.train.driver.setup import complete
from agentrl.train.plan.unused import RULES, TOLD

B = "agents.main=b policies.b.model=start policies.b.lora.rank=4"
IDLE = [
    ("algo.kl_rate=0.2", "algo.kl_rate=0.2 has no effect without algo.kl_target"),
    ("model=smollm2-135m algo.kl_target=0.2", "algo.kl_target=0.2 has no effect without algo.kl_coef"),
    ("algo.kl_coef=0.1 algo.kl_as=reward algo.kl_gradient=exact", "without algo.kl_as=loss"),
    ("algo.constant_tokens=5", "without algo.normalize=constant"),
    ("algo.correction.weight_max=2", "without algo.correction.weight=token|turn|session"),
    ("algo.correction.weight=token algo.correction.weight_mean=true", "weight_mean=true has no effect without"),
    ("algo.correction.mask_mean=true", "without algo.correction.mask_turn or algo.correction.mask_session"),
    ("algo.correction.proximal=recomputed", "without rollout.staleness or rollout.reuse or data"),
    ("algo.shaping.overlong_buffer=4", "without algo.shaping.overlong_tokens"),
    ("algo.branch_baseline=group", "with rollout.branch=none"),
    ("model=smollm2-135m algo.reference_decay=0.5", "without a reference"),
    ("algo=ppo algo.value_trunk_lr=0.1", "without algo.value_trunk=own"),
    ("algo=reinforce algo.baseline_decay=0.5", "without algo.baseline=moving"),
    ("algo=distill policies.teacher.model=start algo.narrowed=whole", "with algo.divergence=sampled"),
    ("rollout.priority=signal", "without rollout.order=ready"),
    ("rollout.replay_age=3", "without rollout.reuse"),
    ("rollout.branch.continuations=3", "with rollout.branch=none"),
    ("rewards.a=exact_match rewards.a.gate_at=3", "without rewards.a.gates"),
    ("policy=noop warm_start.lr=0.1", "without warm_start.steps"),
    (f"{B} policies.b.algo.kl_rate=3", "policies.b.algo.kl_rate=3 has no effect without policies.b.algo.kl_target"),
    (f"{B} policies.b.algo.branch_baseline=group", "policies.b: algo.branch_baseline=group has no effect with"),
]
IN_USE = [
    "algo.kl_coef=0.1 algo.kl_target=0.2 algo.kl_rate=0.2",
    "algo=dr_grpo algo.constant_tokens=5",
    "algo=dapo rollout.max_replaced=7",
    "fleet.stall_timeout=3 rollout.staleness=1",
    "warm_start.lr=0.1",
    "engine.support_bytes=1 rollout.top_p=0.9",
    "algo.kl_rate=0.1 rollout.reuse_age=1 cluster=local",
]


@pytest.mark.parametrize(("words", "why"), IDLE)
def test_a_setting_without_effect_is_refused_with_what_it_lacks(words: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        complete(parse_words(["env=calculator", *words.split()]))
    assert why in str(refused.value)
    assert str(refused.value).endswith(": leave it out")


@pytest.mark.parametrize("words", IN_USE)
def test_a_setting_that_others_make_use_of_or_with_its_default_is_taken(words: str) -> None:
    complete(parse_words(["env=calculator", *words.split()]))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("rollout.sampler=difficulty", "a file's rows"),
        ("warm_start.steps=3", "reads its sessions"),
        ("algo.correction.weight=token", "demonstrations"),
        ("algo=dpo algo.normalize=token", "whose weights are its own"),
        ("algo=kto algo.desirable_above=3", "a file's rows"),
        ("algo=reward_model algo.kl_coef=0.1", "whose model has scores"),
    ],
)
def test_what_only_sessions_that_are_generated_have_is_refused_for_a_file(words: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace(".", r"\.")):
        complete(parse_words([f"data={__file__}", *words.split()]))


LARGER = [
    ("checkpoint_every=5", "in so few steps"),
    ("eval.every=3", "in so few steps"),
    ("algo.loss.clip_low=0.1", "where a step makes one update"),
    ("api.model=x", "without policy=URL"),
    ("rollout.max_replaced=7", "without rollout.filter"),
    ("rollout.strict_fields=true", "without agent"),
    ("gateway.host=node", "without agent"),
    ("fleet.stall_timeout=3", "with one engine in the trainer's process"),
    ("engine.support_bytes=1", "where tokens are drawn from the whole vocabulary"),
    ("metrics_address=127.0.0.1:1", "without metrics=prometheus"),
    (f"data={__file__} rollout.group_size=3", "in a run that reads its sessions"),
    (f"data={__file__} engine=sglang engine.url=http://a:1", "in a run that reads its sessions"),
    (f"data={__file__} eval.n=4", "in a run that reads its sessions"),
    ("engine=sglang fleet.urls=[http://a:1] fleet.engines=3", "with fleet.urls"),
    ("cluster.max_restarts=3", "without cluster.environments"),
    (f"{B} policies.b.fleet.stall_timeout=3", "with one engine in the trainer's process"),
]


@pytest.mark.parametrize(("words", "why"), LARGER)
def test_settings_of_larger_runs_are_told_and_harm_nothing(
    words: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The same command, and a file that runs share, is for a laptop too."""
    given = ["steps=3", "algo.minibatches=1", *words.split()]
    with caplog.at_level(logging.WARNING):
        complete(parse_words(given[:1] + given[2:] if words.startswith("data=") else ["env=calculator", *given]))
    assert f"{words.split()[-1].removeprefix('policies.b.')} has no effect {why}" in caplog.text


def test_a_key_without_effect_is_told_without_its_value(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        complete(parse_words(["env=calculator", "engine=sglang", "engine.api_key=secret"]))
    assert "engine.api_key=(hidden) has no effect without engine.url" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("words", ["warm_start.steps=0 warm_start.lr=0.1", "algo.kl_coef=0 algo.kl_estimator=k2"])
def test_what_was_switched_off_by_name_keeps_its_settings_which_is_told(
    words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A file has them, and the line says that this run does without."""
    with caplog.at_level(logging.WARNING):
        complete(parse_words(["env=calculator", *words.split()]))
    assert f"{words.split()[1]} has no effect without {words.partition('=')[0]}" in caplog.text


def test_defaults_a_recipe_and_the_settings_of_a_runs_folder_are_nobodys_mistake() -> None:
    config = complete({"env": "calculator"})
    assert complete(config.model_dump(mode="json", exclude={"data"})) == config
    with pytest.raises(ConfigError, match="no effect"):
        complete(config.model_dump(mode="json", exclude={"data"}) | {"cluster": {"rewards": 1}})


def test_a_resumed_run_is_asked_for_what_it_is_given_anew_and_its_policies_get_it_too(tmp_path: Path) -> None:
    words = [
        "env=kuhn_poker",
        "agents.second=b",
        "policies.b.model=start",
        "policies.b.lora.rank=4",
        "algo.kl_coef=0.1",
    ]
    saved = complete(parse_words(words)).model_dump(mode="json", exclude={"data"})
    saved["rollout"]["reuse_age"] = 5
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    again = complete({"resume": str(tmp_path), "algo": {"kl_coef": 0.3, "lr": 0.5}})
    own = again.policies["b"].algo
    assert own is not None
    assert (own.kl_coef, again.algo.lr, own.lr) == (0.3, 0.5, saved["policies"]["b"]["algo"]["lr"])
    with pytest.raises(ConfigError, match=r"rollout\.reuse_age=6 has no effect"):
        complete({"resume": str(tmp_path), "rollout": {"reuse_age": 6}})


def _sections(section: type[Section]) -> set[type[Section]]:
    kinds = {
        each for field in section.model_fields.values() for each in (field.annotation, *get_args(field.annotation))
    }
    found = {each for each in kinds if isinstance(each, type) and issubclass(each, Section)}
    return {section}.union(*map(_sections, found))


def test_every_declared_condition_names_settings_that_there_are() -> None:
    """One that names none would refuse a setting for ever."""
    algorithms = [ALGORITHMS.settings(info.name) for info in ALGORITHMS.list()]
    for section in set().union(*map(_sections, [RunConfig, *algorithms])):
        for name, condition in vars(section).get("only_with", {}).items():
            terms = [term for part in condition.split(" and ") for term in part.split(" or ")]
            for key in (name, *(term.removeprefix("!").partition("=")[0] for term in terms)):
                assert key in section.model_fields, (section, key)
    config: Any = validate({"env": "calculator"}, RunConfig)
    for rule in (*RULES, *TOLD):
        if rule.holds is None:
            read_condition(rule.condition, config)
        for setting in rule.settings.split():
            assert setting.partition(".")[0].partition("=")[0] in RunConfig.model_fields, setting


def test_a_server_of_sessions_refuses_what_it_does_not_read() -> None:
    words = "model=tiny engine=sglang fleet.urls=[http://a:1] fleet.engines=3 fleet.max_engines=4 forward.key=secret"
    with pytest.raises(ConfigError) as refused:
        serve_command(parse_words(words.split()), Console())
    assert str(refused.value).split("\n") == [
        "fleet.engines=3 has no effect with fleet.urls: leave it out",
        "fleet.max_engines=4 has no effect where sessions are served: leave it out",
        "forward.key has no effect without forward.url: leave it out",
    ]
