"""Errors of a run that can be found before anything is written, loaded or trained.

Each check is cheap beside what would otherwise come before the failure: building the tiny model, fetching weights,
starting servers, a warm start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from agentrl import faults
from agentrl.config import (
    MODEL,
    PAST,
    ClusterConfig,
    DataConfig,
    EngineConfig,
    FleetConfig,
    GatewayConfig,
    LoraConfig,
    ModelConfig,
    Policies,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from agentrl.config.learners import LearnerConfig, named_as_given
from agentrl.config.secrets import public
from agentrl.envs import calls
from agentrl.envs.base import Env, reward_methods
from agentrl.envs.data.hub import is_hub, no_such_file
from agentrl.envs.data.mixture import list_mixed
from agentrl.envs.registry import ENVS, make
from agentrl.envs.rewards import REWARDS
from agentrl.errors import ConfigError, EnvError, UnknownName, missing_extra, suggest, unknown_name
from agentrl.models import KNOWN, resolve
from agentrl.models.registry import TINY
from agentrl.rollout.engines import ENGINES, check_engine, check_reference, grammars
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.episodes.agents import load_agent
from agentrl.rollout.episodes.branching import check_branching
from agentrl.rollout.episodes.combinations import check_tree
from agentrl.rollout.episodes.counterfactuals import check_counterfactuals
from agentrl.rollout.episodes.evaluation import SCRIPTED, held_out_split
from agentrl.rollout.episodes.opponents import check_partner
from agentrl.rollout.remote import check_api, is_remote
from agentrl.rollout.sources.runs import is_run
from agentrl.rollout.stream.filters import FILTERS, PRIORITIES, make_measure
from agentrl.sessions.gateway.http.tls import Tls
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.registry import check_name
from agentrl.train.algorithms.base import Algorithm
from agentrl.train.driver import base_model, resuming, setup
from agentrl.train.plan.agent_checks import check_addresses, check_agents
from agentrl.train.plan.trainer_checks import check_joint_path, check_layouts, check_trainers, check_view
from agentrl.train.record import chain
from agentrl.train.trackers import TRACKERS
from agentrl.train.trainers import TRAINERS, beyond_layers
from agentrl.types import MAIN

OF_RUNS = ("min_reward", "max_reward", "status", "agent")
OF_FILES = ("columns", "strings", "train_on", "max_tokens", "overlong", "held_out", "config", "where")
"""Settings of `data` that choose among a recorded run's sessions, and those that say how a file is read."""
WrittenLater = Literal["", "run", "file"]
"""Says whether `data` names something that is still to come."""


def check_training(config: RunConfig, *, written_later: WrittenLater = "") -> dict[str, Algorithm]:
    """Look up what a training run's configuration names; a model that is known by name is fetched.

    Args:
        config: the run's.
        written_later: `data` names a run, or a file, that is still to come.

    Returns:
        The algorithms of the policies that learn, by name, for the run.

    Raises:
        UnknownName: there is none of a name; the message lists what is known.
        ConfigError, InvalidInput, EnvError, MissingExtra: something that is named can't be used here.
    """
    if config.resume:  # first, so that another environment is refused as another, and not for its settings
        chain.refuse_done_stage(Path(config.resume))
        saved = resuming.saved_settings(Path(config.resume))
        resuming.changes(Path(config.resume), public(saved), public(config))
    if config.policy != "model":
        raise ConfigError(f"policy={config.policy!r} is for agentrl eval; what is trained is named by model=")
    if config.faults is not None:
        faults.load(config.faults)
    algorithms = check_trainers(config.learners, config.policies)
    algorithm, begun = algorithms[MAIN], config.resume or config.rerun
    check_addresses(config.fleets)
    for name, own in config.learners.items():
        with named_as_given(config.policies, name):
            _check_adapter(own.engine, own.lora)
    for name in config.metrics:
        TRACKERS.find(name)
    if config.data is not None:
        _refuse_cluster(config.cluster)
        _check_reading(config.data, config.model, algorithm, written_later=written_later, resumed=bool(config.resume))
        check_layouts(config.learners, config.policies, begun)
        return algorithms
    if not algorithm.needs.engine:
        raise ConfigError(f"algo={config.algo.name} learns from what is read: data=FILE or data=runs/NAME names it")
    _check_resident(config.rewards, config.cluster)
    env = check_rollouts(config)
    if not (config.rewards or config.agent or config.allow_no_signal):
        _check_rewarded(config.env.name, env, algorithm)
    check_layouts(config.learners, config.policies, begun)
    for name, own in config.learners.items():
        each, engine = algorithms[name], _with_address(own.engine, own.fleet)
        with named_as_given(config.policies, name):
            _check_sampling(config.rollout, engine, own.trainer, refuse=not config.allow_no_signal)
            if config.agent is None:
                _check_names(each, config.env.name, env, config.rewards)
            check_view(each, env)
            check_joint_path(each, env, config.rollout.branch.name, config.agent, config.agents, config.policies)
            if each.needs.counterfactuals:
                check_counterfactuals(each.name, env)
            if each.needs.combinations:
                most: int = each.config.max_joint_actions  # type: ignore[attr-defined]
                check_tree(env, config.rollout, config.combinations, most)
    _check_tasks(env, held_out_split(config.eval, env))
    if config.warm_start.steps:
        _check_tasks(env, base_model.demonstration_split(env))
    return algorithms


def _check_rewarded(name: str, env: Env, algorithm: Algorithm) -> None:
    """Refuse an environment that can't give a reward, where the algorithm learns from rewards.

    One with tools, with steps of its own, or in a wrapper may give them there; a program gives them to the gateway.
    """
    if algorithm.config.shaping.active or algorithm.needs.teacher:
        return
    for part in list_mixed(env).values():
        wrapped = part is not part.unwrapped
        if not (wrapped or reward_methods(part) or type(part).step is not Env.step or part.tools.schemas()):
            where = name if part is env else f"{name}, {type(part).__name__} in it"
            raise ConfigError(
                f"env={where} gives no reward, so algo={algorithm.config.name} has nothing to learn from: "
                "rewards.NAME=… adds one (rewards.correct=exact_match, or a function of your own)"
            )


def _check_names(algorithm: Algorithm, name: str, env: Env, rewards: Collection[str]) -> None:
    """Refuse an algorithm's settings that name an agent or a reward which no session of env=`name` has.

    Environments with steps of their own, and those in wrappers, may give rewards by any name.
    """
    parts = list_mixed(env).values()
    found = {*rewards, *(mark.name for part in parts for mark, _ in reward_methods(part))}
    fixed = all(part is part.unwrapped and type(part).step is Env.step for part in parts)
    settings, agents = algorithm.config, {agent for part in parts for agent in part.agents}
    known = [("reward", settings.named_rewards, found)] if fixed else []
    for kind, named, there in [*known, ("agent", settings.named_agents, agents)]:
        for setting, names in named.items():
            if odd := next((each for each in names if each not in there), None):
                raise ConfigError(
                    f"algo.{setting}.{odd}: env={name} has no such {kind}{suggest(odd, there)} "
                    f"({kind}s: {', '.join(sorted(there))})"
                )


def _check_adapter(engine: EngineConfig, lora: LoraConfig) -> None:
    """Refuse servers that compute an adapter beside their base where some of it is no adapter."""
    rank = getattr(engine, "adapter_rank", 0)
    more = " and ".join(filter(None, beyond_layers(lora))) if rank and lora.active else ""
    if more:
        raise ConfigError(
            f"engine.adapter_rank={rank}: engine={engine.name} computes adapters on linear layers alone, and "
            f"{more} is more; with engine.adapter_rank=0 it gets whole weights"
        )


def _refuse_cluster(cluster: ClusterConfig) -> None:
    if cluster.name != "local":
        raise ConfigError(f"cluster={cluster.name}: a run that reads its sessions trains on this machine so far")


def _check_reading(
    data: DataConfig, model: ModelConfig, algorithm: Algorithm, *, written_later: WrittenLater, resumed: bool
) -> None:
    """Refuse what a run that reads its sessions can't do, and a model or a file that is not there."""
    needs, algo, file = (
        algorithm.needs,
        algorithm.config,
        written_later == "file" or not (written_later or is_run(data.name)),
    )
    if file and needs.engine and not (needs.pairs or needs.labels):
        raise ConfigError(
            f"data={data.name}: algo={algo.name} learns from rewards and log-probabilities, which only recorded "
            "sessions have: algo=sft imitates a file's conversations, algo=dpo, simpo, orpo, cpo and kto learn from a "
            "file's pairs, data=runs/NAME reads a run's sessions"
        )
    if file and algo.kl_coef and algo.kl_as == "reward":
        raise ConfigError(f"data={data.name}: algo.kl_as=reward needs sampled tokens; a file has algo.kl_as=loss")
    if needs.greedy or needs.counterfactuals:
        beside = "greedy sessions" if needs.greedy else "continuations"
        raise ConfigError(f"data={data.name}: algo={algo.name} needs {beside}, which only a run that plays has")
    if not (written_later or is_hub(data.name)) and not Path(data.name).expanduser().exists():
        raise ConfigError(f"data={data.name}: {no_such_file(data.name)}")
    _check_kind(data, file=file)
    check_name(model.renderer, "model.renderer")
    if model.name != setup.TINY and not resumed:
        own = resolve(model.name, scores=algorithm.needs.head is not None)
        get_renderer(own, model.renderer, model.stop)


def _check_kind(data: DataConfig, *, file: bool) -> None:
    """Refuse settings of files for a recorded run, and those of runs for a file."""
    kind, other = ("a file", "a recorded run") if file else ("a recorded run", "a file")
    for name in OF_RUNS if file else OF_FILES:
        if (value := getattr(data, name)) != DataConfig.model_fields[name].get_default():
            given = ",".join(value) if isinstance(value, tuple) else value
            raise ConfigError(f"data.{name}={given} is of {other}, and data={data.name} is {kind}: leave it out")


def check_rollouts(config: RunConfig) -> Env:
    """Look up what the configuration of rollouts without a trainer names; one of its environments."""
    model = None if config.resume or config.rerun else config.model.name  # these have the run's own copy
    own, here = config.learners[MAIN], config.cluster.name == "local"
    _check_player(own, model, here, config.agent, config.gateway)
    make_measure(FILTERS, config.rollout.filter)
    make_measure(PRIORITIES, config.rollout.priority)
    _check_known_elsewhere(config.env.name, config.cluster.environments)
    try:
        env = make(config.env.name, **config.env.kwargs)
    except UnknownName as error:
        if not (begun := config.resume or config.rerun) or ":" in config.env.name:
            raise
        raise UnknownName(
            f"{error}; where it was registered by the script that began {begun}, as a class given to agentrl.train is, "
            f"go on in such a script: agentrl.train(CLASS, {'resume' if config.resume else 'rerun'}={begun!r})"
        ) from None
    check_branching(config.rollout.branch, env, config.agent)
    check_agents(config.env.name, env, config.agents, config.policies, config.program, trains=True)
    _check_policies(config.policies, config.asked_policies, env, here=here)
    _check_tasks(env, "train")
    return env


def _check_known_elsewhere(name: str, workers: int) -> None:
    """Refuse an environment that workers would look for in vain."""
    if workers and ENVS.is_of_process(name):
        raise ConfigError(
            f"env={name!r} is registered in this process alone, and cluster.environments={workers} "
            f"plays it in others: name its class by its file, env='path/to/file.py:CLASS'"
        )


def check_evaluation(config: RunConfig) -> None:
    """Look up what an evaluation's configuration names; a model that is known by name is fetched."""
    here = config.cluster.name == "local"
    _check_resident(config.rewards, config.cluster)
    _check_known_elsewhere(config.env.name, config.cluster.environments)
    env = make(config.env.name, **config.env.kwargs)
    if is_remote(config.policy):
        check_api(config.policy, config.api, env)
    elif config.policy not in SCRIPTED:
        if config.policy not in ("model", TINY, *KNOWN) and not Path(config.policy).expanduser().exists():
            unknown = unknown_name("policy", config.policy, ["model", *SCRIPTED, TINY, *KNOWN])
            raise type(unknown)(f"{unknown}; a local Hugging Face folder and an API's URL work as well")
        model = config.model.name if config.policy == "model" else config.policy
        own = config.learners[MAIN]
        _check_player(own, model, here, config.agent, config.gateway)
        _check_calls(config.rollout, _with_address(config.engine, config.fleet))
    for name, policy in config.policies.items():
        if policy.name == PAST:
            raise ConfigError(
                f"policies.{name}={PAST} is for training; of a run that has ended, "
                f"policies.{name}.model=RUN/past/step-… is one of the versions"
            )
    check_agents(config.env.name, env, config.agents, config.policies, config.program, trains=False)
    _check_policies(config.policies, config.asked_policies, env, here=here)
    _check_tasks(env, held_out_split(config.eval, env))


def _check_resident(rewards: Mapping[str, RewardConfig], cluster: ClusterConfig) -> None:
    """Refuse rewards whose models are not there, and several copies of one on a device."""
    names = [name for name, each in rewards.items() if each.resident]
    for name in names:
        try:
            REWARDS.find(rewards[name].name).memory(rewards[name])
        except ConfigError as error:
            raise ConfigError(f"rewards.{name}: {error}") from None
    if not names or cluster.resources.rewards.gpus:  # each worker has GPUs of its own
        return
    if cluster.rewards > 1 or (cluster.environments and not cluster.rewards):
        where = f"each of cluster.environments={cluster.environments}" if not cluster.rewards else "each reward worker"
        raise ConfigError(
            f"rewards.{names[0]}={rewards[names[0]].name} holds a model, of which there would be a copy in "
            f"{where}: use cluster.rewards=1, or with cluster=ray cluster.resources.rewards.gpus=1"
        )


def _check_policies(policies: Policies, asked: Collection[str], env: Env, *, here: bool) -> None:
    """Check that frozen policies can be loaded here, and engines of all be made; `here`: on this machine."""
    for name, policy in policies.items():
        with named_as_given(policies, name):
            if policy.name in (MODEL, PAST):
                check_engine(policy.engine, policy.fleet, here=here)
                check_name(policy.model.renderer, "model.renderer")
            if not (policy.remote and name in asked):  # which plays nothing, and is asked before
                check_partner(name, policy, env)


def _check_sampling(limits: RolloutConfig, engine: EngineConfig, trainer: TrainerConfig, *, refuse: bool) -> None:
    """Refuse sampling by which no token can be trained; temperature 0 is refused with the settings."""
    plugin = ENGINES.find(engine.name)
    _check_calls(limits, engine)
    narrowed = limits.narrowed
    if not narrowed or not refuse:
        return
    recorded, computed = plugin.records_supports, TRAINERS.find(trainer.name).computes_supports
    if recorded and limits.repetition_penalty != 1 and not plugin.records_penalties(engine):
        recorded, narrowed = False, f"repetition_penalty={limits.repetition_penalty:g}"
    if recorded and computed and engine.support_bytes:
        return
    why = f"trainer={trainer.name} computes log-probabilities over the whole vocabulary alone"
    if not recorded:
        what = "what penalties change" if plugin.records_supports else "what is left of the vocabulary"
        why = f"engine={engine.name} does not record {what} with these settings, as engine=local does (docs/engines.md)"
    elif computed:
        why = "engine.support_bytes=0 records nothing of what is left of the vocabulary"
    raise ConfigError(
        f"rollout.{narrowed}: no token could be trained: {why}; evaluations have settings of their own (eval.top_p), "
        "and allow_no_signal=true runs nevertheless"
    )


def _check_calls(limits: RolloutConfig, engine: EngineConfig) -> None:
    """Refuse calls under their schemas where the engine would draw them without."""
    if not limits.strict_calls:
        return
    if not ENGINES.find(engine.name).keeps_to_calls(engine):
        raise ConfigError(
            f"rollout.strict_calls=true: engine={engine.name} has no grammars of tool calls: use local, or a server of "
            "agentrl's own (sglang, vllm); one that runs already needs llguidance's grammars and a setting that says so"
        )
    if not grammars.available():
        raise missing_extra("llguidance", grammars.EXTRA)


def _with_address(engine: EngineConfig, fleet: FleetConfig) -> EngineConfig:
    """The engine's settings, as an engine of a fleet that runs already has them (`fleet.urls`)."""
    urls = fleet.urls if isinstance(engine, ServerConfig) else ()
    return engine.model_copy(update={"url": urls[0]}) if urls else engine


def _check_player(
    own: LearnerConfig, model: str | None, here: bool, program: str | None, gateway: GatewayConfig
) -> None:
    check_engine(own.engine, own.fleet, here=here)
    if own.weights.prove_every:
        check_reference(own.engine, own.fleet)
    check_name(own.model.renderer, "model.renderer")
    if program is not None:
        load_agent(program)
        Tls.of(gateway.tls_certificate, gateway.tls_key, "gateway.")
    if model not in (None, setup.TINY):
        get_renderer(resolve(model), own.model.renderer, own.model.stop)


def _check_tasks(env: Env, split: str) -> None:
    if next(calls.tasks(env, split), None) is None:
        raise EnvError(f"{type(env.unwrapped).__name__} has no tasks in the split {split!r}")
