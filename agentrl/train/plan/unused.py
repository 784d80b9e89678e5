"""Settings of a run that have no effect beside others of other sections; `Section.only_with` is within a section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config import (
    AlgoConfig,
    DataConfig,
    EngineConfig,
    EvalConfig,
    FleetConfig,
    RolloutConfig,
    RunConfig,
    WeightsConfig,
)
from agentrl.config.learners import OWN
from agentrl.config.unused import UseRule, list_unused, refuse
from agentrl.rollout.remote import is_remote

READ = frozenset(
    (
        *("rollout.groups_per_step", "rollout.sampler", "rollout.staleness", "rollout.max_replaced", "rollout.order"),
        *("rollout.filter", "rollout.reuse", "rollout.reuse_age", "rollout.temperature", "eval.every", "eval.tasks"),
    )
)
"""Settings of rollouts and evaluations that a run which reads its sessions has as well."""
PLAYED = "agent agents rewards tools warm_start rerun eval.weights cluster.sessions"
"""Settings that say what a run learns from, where it generates its sessions."""
PLAYING = (
    *("engine", "fleet", "weights", "gateway", "sandbox", "cluster.environments", "cluster.gateways", "mismatch_bound"),
    *(name for field in RolloutConfig.model_fields if (name := f"rollout.{field}") not in READ),
    *(name for field in EvalConfig.model_fields if (name := f"eval.{field}") not in {*READ, *PLAYED.split()}),
)
"""Settings by which a run generates its sessions."""


def _needs(algo: AlgoConfig) -> Any:
    from agentrl.train.algorithms import ALGORITHMS

    return ALGORITHMS.find(algo.name)(algo).needs


def _averages(algo: AlgoConfig) -> bool:
    needs = _needs(algo)
    return not (needs.pairs or needs.labels or needs.head)


def _samples(algo: AlgoConfig) -> bool:
    needs = _needs(algo)
    return needs.engine and not (needs.pairs or needs.labels)


def _has_reference(algo: AlgoConfig) -> bool:
    needs = _needs(algo)
    return bool(algo.kl_coef) or needs.reference or needs.reward_model


def _replaces(algo: AlgoConfig) -> bool:
    from agentrl.train.algorithms import ALGORITHMS, Algorithm

    chooses = ALGORITHMS.find(algo.name).select is not Algorithm.select
    return chooses and getattr(algo, "dynamic_sampling", True)


def _groups(data: DataConfig | None) -> bool:
    """Return whether what is read may be groups with rewards: not a file's rows."""
    from agentrl.envs.data.hub import is_hub
    from agentrl.rollout.sources.runs import is_run

    if data is None:
        return True
    return is_run(data.name) or not (is_hub(data.name) or Path(data.name).expanduser().exists())


def _is_served(engine: EngineConfig, fleet: FleetConfig, weights: WeightsConfig, *, apart: bool) -> bool:
    """Return whether weights are published; `apart`: the engine is not in the trainer's process where it needn't be."""
    from agentrl.rollout.engines import ENGINES
    from agentrl.rollout.fleet import has_publisher

    return has_publisher(ENGINES.find(engine.name).beside_trainer(engine) if apart else engine, fleet, weights)


def _tracks(metrics: Iterable[str], *names: str) -> bool:
    return any(name in names or ":" in name for name in metrics)


WATCHING = "stall_timeout probe_every probe_timeout max_failures max_attempts max_restarts regain_restart_after"
RULES = (
    UseRule("in a run that reads its sessions (data=)", PLAYED, lambda run: run.data is None),
    UseRule(
        "with a file's rows (data=FILE), which have no rewards",
        "rollout.sampler=difficulty algo.shaping",
        lambda run: _groups(run.data),
    ),
    UseRule(
        "with a file's rows (data=FILE), which are judged",
        "algo.pairing algo.min_gap algo.desirable_above",
        lambda run: _groups(run.data),
    ),
    UseRule("agent", "cluster.gateways"),
    UseRule("rewards", "cluster.rewards"),
    UseRule("with cluster.sessions", "rollout.save_states", lambda run: not run.cluster.holds_sessions),
    UseRule("sandbox.name=remote or env.sandbox=remote", "sandbox.url sandbox.key_file sandbox.certificate"),
    UseRule(
        "with an algorithm over pairs, labels or scores, whose weights are its own",
        "algo.normalize algo.constant_tokens",
        lambda run: _averages(run.algo),
    ),
    UseRule(
        "with an algorithm over demonstrations, pairs, labels or scores",
        "algo.correction",
        lambda run: _samples(run.algo),
    ),
    UseRule(
        "with an algorithm whose model has scores, and no distribution over tokens",
        "algo.kl_coef algo.entropy_coef algo.entropy_target",
        lambda run: _needs(run.algo).head is None,
    ),
    UseRule(
        "without a reference (algo.kl_coef)",
        "algo.reference_decay trainer.reference=copy",
        lambda run: _has_reference(run.algo),
    ),
    UseRule("rollout.staleness or rollout.reuse or data", "algo.correction.proximal"),
    UseRule("!rollout.branch.name=none", "algo.branch_baseline"),
    UseRule("!trainer.optimizer=sgd", "algo.betas"),
)
"""Those of what is learned, and from what: who gives one counts on it."""

TOLD = (
    UseRule("in a run that reads its sessions (data=)", " ".join(PLAYING), lambda run: run.data is None),
    UseRule(
        "in a run that reads its sessions (data=) and asks no teacher",
        "rollout.temperature",
        lambda run: run.data is None or run.asked_policies,
    ),
    UseRule("agent", "gateway rollout.retry_detection rollout.strict_fields"),
    UseRule(
        "without rollout.filter, or an algorithm that replaces groups (dapo)",
        "rollout.max_replaced",
        lambda run: run.rollout.filter is not None or _replaces(run.algo),
    ),
    UseRule("lora.rank or lora.adapter", "engine.adapter_rank"),
    UseRule("engine.url or fleet.urls", "engine.api_key"),
    UseRule(
        "with a server that runs already",
        "engine.cores engine.log engine.threads",
        lambda run: not (run.fleet.urls or getattr(run.engine, "url", None)) or run.weights.prove_every > 0,
    ),
    UseRule(
        "where tokens are drawn from the whole vocabulary (rollout.top_p, top_k, min_p, strict_calls)",
        "engine.support_bytes",
        lambda run: run.rollout.narrowed or run.eval.limits(run.rollout).narrowed or run.gateway.sampling == "client",
    ),
    UseRule("cluster.name=ray", "fleet.max_engines"),
    UseRule("with one engine", "fleet.max_imbalance", lambda run: run.fleet.count > 1 or run.fleet.max_engines),
    UseRule(
        "with one engine in the trainer's process",
        " ".join(f"fleet.{name}" for name in WATCHING.split())
        + " weights.mode weights.bucket_mb weights.dtype weights.verify weights.keep weights.dir",
        lambda run: _is_served(
            run.engine, run.fleet, run.weights, apart=run.rollout.staleness > 0 or run.cluster.name != "local"
        ),
    ),
    UseRule("without metrics=prometheus", "metrics_address", lambda run: _tracks(run.metrics, "prometheus")),
    UseRule("without a tracker", "metrics_project", lambda run: _tracks(run.metrics, "wandb", "mlflow", "trackio")),
    UseRule("without policy=URL", "api", lambda run: is_remote(run.policy)),
    UseRule(
        "in so few steps: the last one has a checkpoint anyway",
        "checkpoint_every",
        lambda run: run.checkpoint_every <= run.steps,
    ),
    UseRule(
        "in so few steps: what is measured is the first policy and the last one",
        "eval.every",
        lambda run: run.eval.every is None or run.eval.every < run.steps,
    ),
    UseRule(
        "where a step makes one update from tokens of its own version: every ratio is 1",
        "algo.loss.clip_low algo.loss.clip_high algo.loss.dual_clip",
        lambda run: (
            max(run.algo.epochs, run.algo.minibatches) > 1
            or max(run.rollout.staleness, run.rollout.reuse) > 0
            or run.data is not None
        ),
    ),
)
"""Those of other machines, and of longer runs: one command, or file, is for a laptop as well."""
HARMLESS = (
    *("engine", "fleet", "weights", "gateway", "cluster.call_timeout", "cluster.max_restarts"),
    *("accept_changed_data", "checkpoint_url_timeout"),
)
"""Those of them that their own sections know (`Section.only_with`)."""


def refuse_unused(config: RunConfig, given: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
    """Refuse those of the given settings that have no effect in a run, and tell of those that harm nothing.

    What the `recipe` has as well, as a run's config.yaml does, is nobody's mistake.

    Raises:
        ConfigError: it names each, and why.
    """
    refuse(_list_all(config, given, recipe, RULES))
    refuse((said, True) for said, _ in _list_all(config, given, recipe, TOLD, own=False))


def _list_all(
    config: RunConfig, given: Mapping[str, Any], recipe: Mapping[str, Any], rules: tuple[UseRule, ...], own: bool = True
) -> Iterator[tuple[str, bool]]:
    yield from list_unused(config, given, rules, but=recipe, own=own, harmless=HARMLESS)
    policies = given.get("policies")
    for name, settings in policies.items() if isinstance(policies, Mapping) else ():
        sections = ("engine", "fleet", *OWN)
        asked = {key: settings[key] for key in sections if key in settings} if isinstance(settings, Mapping) else {}
        policy = config.policies[name]
        changed = {key: getattr(policy, key) for key in sections if getattr(policy, key) is not None}
        view = config.model_copy(update={**changed, "data": None, "policies": {}})
        inside = {key: value for key, value in asked.items() if isinstance(value, Mapping)}
        yield from ((f"policies.{name}: {said}", off) for said, off in list_unused(view, inside, rules, own=False))
