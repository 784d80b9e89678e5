"""Impossible layouts as settings are given: each refusal says what is asked, what is there, and what would fit."""

from __future__ import annotations

import re

import pytest

from agentrl.cluster import ClusterNode
from agentrl.cluster.placement.plan import place
from agentrl.errors import ConfigError
from agentrl.overrides import parse_words
from agentrl.train.driver.setup import complete
from agentrl.train.plan.memory import Split
from agentrl.train.plan.placing import run_demand, split_of
from agentrl.train.plan.shapes import KNOWN

GPUS = [ClusterNode("a", 8.0, 4), ClusterNode("b", 8.0, 4)]
CPUS = [ClusterNode("a", 4.0, 0), ClusterNode("b", 4.0, 0, {"sandbox": 2.0})]
SGLANG = "engine=sglang engine.device=cuda "
TRAINER = "trainer=fsdp trainer.device=cuda trainer.ranks="
FSDP = f"{SGLANG}{TRAINER}"
MEGATRON = f"{SGLANG}trainer=megatron trainer.device=cuda trainer.ranks="
PLAIN = "trainer.device=cpu engine.device=cpu cluster.environments="
OF = "cluster.resources."
REWARDS = "rewards.service=examples/plugins/reward_service.py:Service rewards.service.url=http://a cluster.rewards="
GATEWAYS = "agent=solve cluster.gateways="
SANDBOX = f"{OF}environments.custom.sandbox="
PARALLEL = "trainer.tensor_parallel="

WRONG: list[tuple[list[ClusterNode], str, str, str]] = [
    # what is given; what is said to be asked, and not there; what is said to fit
    (GPUS, f"{FSDP}8", "9 GPUs in all, and there are 8", "fleet.colocated=true"),
    (GPUS, f"{FSDP}4 fleet.engines=5", "engine: 5 x (1 GPU)", "fleet.engines=4"),
    (GPUS, f"{FSDP}12", "trainer.ranks=12 needs as many GPUs, and there are 8", "trainer.ranks=8 is the most"),
    (GPUS, f"{FSDP}4 fleet.colocated=true fleet.engines=5", "5 GPUs of the trainer, which has 4", "engines=4"),
    (GPUS, f"{FSDP}4 fleet.colocated=true fleet.engines=2 engine.server.tp_size=3", "6 GPUs of", "fleet.engines=1"),
    (GPUS, f"{FSDP}8 fleet.colocated=true fleet.engines=4 fleet.colocated_engines=2", "10 GPUs in all", "ranks=6"),
    (GPUS, f"{FSDP}4 fleet.colocated=true rollout.staleness=1", "engines sleep meanwhile", "fleet.colocated_engines"),
    (GPUS, f"{FSDP}4 fleet.engines=4 fleet.colocated_engines=2", "colocated_engines=2 needs", "fleet.colocated=true"),
    (GPUS, f"{FSDP}4 fleet.colocated=true fleet.colocated_engines=5", "colocated_engines=5", "as many engines"),
    (GPUS, f"{TRAINER}4 fleet.colocated=true engine.device=cpu", "engine.device has it on the CPU", "=false"),
    (GPUS, f"{SGLANG}trainer.device=cpu fleet.colocated=true", "trainer.device has it on the CPU", "device=cuda fits"),
    (GPUS, f"{FSDP}4 cluster.environments=17", "17 CPUs in all, and there are 16", "cluster.environments=16"),
    (GPUS, f"{FSDP}4 cluster.environments=2 {SANDBOX}1", "the most is 0", "2 more nodes with 1 CPU, 1 sandbox"),
    (GPUS, f"{FSDP}4 {OF}trainer.cpus=9", "9 CPUs on one node, and the largest has 8", "4 more nodes with 1 GPU, 9"),
    (GPUS, f"{FSDP}4 {OF}trainer.cpus=5", "20 CPUs in all, and there are 16", "trainer.ranks=2"),
    (GPUS, f"{FSDP}4 {OF}engine.custom.fast=1", "1 fast on one node, and the most is 0", "1 more node with 1 GPU, 1"),
    (GPUS, f"{FSDP}4 cluster.environments=4 cluster.max_environments=2", "max_environments=2 is", "environments=4"),
    (GPUS, f"{FSDP}4 {OF}trainer.cpus=-1", "cluster.resources.trainer.cpus=-1", "greater than or equal to 0"),
    (GPUS, f"{FSDP}4 {OF}trainer.custom.fast=0", "cluster.resources.trainer.custom.fast=0", "greater than 0"),
    (GPUS, f"{FSDP}4 {OF}engine.gpus=1", "unknown setting 'cluster.resources.engine.gpus'", "rewards.gpus"),
    (GPUS, f"{FSDP}4 cluster.rewards=1", "cluster.rewards=1 has no effect without rewards", "leave it out"),
    (GPUS, f"{FSDP}4 {REWARDS}4 {OF}rewards.gpus=1", "9 GPUs in all, and there are 8", "cluster.rewards=3"),
    (GPUS, f"{FSDP}4 {REWARDS}1 {OF}rewards.gpus=5", "unit of rewards needs 5 GPUs on one node", "1 more node with 5"),
    (CPUS, f"{PLAIN}4 {REWARDS}5", "9 CPUs in all, and there are 8", "cluster.environments=3"),
    (GPUS, f"{FSDP}4 cluster.gateways=2", "cluster.gateways=2 has no effect without agent", "leave it out"),
    (CPUS, f"{PLAIN}4 {GATEWAYS}5", "9 CPUs in all, and there are 8", "cluster.gateways=4"),
    (CPUS, f"{PLAIN}0 {GATEWAYS}1 {OF}gateway.custom.sandbox=3", "the most is 2", "1 more node with 1 CPU, 3 sandbox"),
    (CPUS, f"{PLAIN}1 {GATEWAYS}1 cluster.address=auto", "gateway.host=127.0.0.1 is reached", "gateway.host=node"),
    (GPUS, f"{FSDP}4 {OF}gateway.gpus=1", "unknown setting 'cluster.resources.gateway.gpus'", "rewards.gpus"),
    (GPUS, f"{FSDP}4 cluster.layout=colocated", "unknown setting 'cluster.layout'", "Known in cluster"),
    (GPUS, f"{MEGATRON}8 {PARALLEL}8", "needs 8 GPUs on one node", f"{PARALLEL}4 trainer.ranks=4"),
    (GPUS, f"{MEGATRON}4 {PARALLEL}4 fleet.engines=2 engine.server.tp_size=4", "12 GPUs in all", "fleet.engines=1"),
    (GPUS, f"{MEGATRON}3 engine.server.tp_size=8", "engine needs 8 GPUs on one node", "engines of 4 GPUs each"),
    (GPUS, f"{MEGATRON}4 engine.server.tp_size=2 engine.server.pp_size=4", "engine: 1 x (8 GPUs)", "engines of 4 GPUs"),
    (GPUS, f"{MEGATRON}6 trainer.pipeline_parallel=3 fleet.engines=3", "9 GPUs in all", "fleet.engines=2"),
    (GPUS, f"{MEGATRON}6 {PARALLEL}4", "trainer.ranks=6 is not a multiple of tensor x pipeline", "trainer.ranks=4 is"),
    (GPUS, f"{MEGATRON}4 trainer.pipeline_parallel=8", "trainer.ranks=4 is not a multiple", "trainer.ranks=8 is"),
    (GPUS, f"{MEGATRON}4 {PARALLEL}4 trainer.context_parallel=2", "x context = 4 x 1 x 2", "trainer.ranks=8 is"),
    (GPUS, f"{MEGATRON}3 {PARALLEL}3", "tensor_parallel=3 does not divide", "32 attention heads"),
    (GPUS, f"{MEGATRON}4 trainer.expert_parallel=2", "trainer.expert_parallel=2", "for a model without experts"),
    (GPUS, f"{SGLANG}trainer=torch trainer.ranks=2", "trainer.ranks=2 belongs to", "trainer=fsdp and trainer=megatron"),
    (CPUS, f"{SGLANG}trainer.device=cpu", "engine needs 1 GPU on one node", "1 more node with 1 GPU"),
    (CPUS, "trainer.device=cuda engine.device=cpu", "trainer needs 1 GPU on one node", "1 more node with 1 GPU"),
    (CPUS, f"{PLAIN}9", "9 CPUs in all, and there are 8", "cluster.environments=8"),
    (CPUS, f"{PLAIN}1 {OF}environments.cpus=6", "6 CPUs on one node, and the largest has 4", "1 more node with 6 CPUs"),
    (CPUS, f"{PLAIN}3 {SANDBOX}1", "3 sandbox in all, and there are 2", "cluster.environments=2"),
    (CPUS, f"{PLAIN}2 {SANDBOX}1 {OF}environments.cpus=2.5", "not together on single nodes", "cluster.environments=1"),
    (CPUS, f"{PLAIN}1 {SANDBOX}3", "3 sandbox on one node, and the most is 2", "1 more node with 1 CPU, 3 sandbox"),
    ([], f"{PLAIN}1", "There: no node. Why: no node is alive", "1 more node with 1 CPU"),
]  # fmt: skip


def planned(nodes: list[ClusterNode], words: str) -> None:
    """Place what settings ask for, as a run does before it starts anything, with a model of 32 heads."""
    config = complete(parse_words(["env=calculator", "model=tiny", "cluster=ray", *words.split()]))
    splits = {"main": split_of(config.trainer, KNOWN["qwen3-8b"], nodes)}
    place(nodes, run_demand(config.learners, config.policies, config.cluster, splits, nodes).wanted())


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "words", "why", "fits"), WRONG)
def test_settings_that_no_cluster_of_these_nodes_can_have_are_refused_with_what_would_fit(
    nodes: list[ClusterNode], words: str, why: str, fits: str
) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(why)}.*{re.escape(fits)}") as refused:
        planned(nodes, words)
    if "can't be placed" in str(refused.value):
        assert re.search(r"Asked: .+\. There: .+\. Why: .+\. What would fit: (?!nothing)", str(refused.value))


@pytest.mark.parametrize(
    ("policy", "engines", "own"),
    [
        ("model=start policies.a.engine.process=own", 2, 0),
        ("model=start", 1, 0),
        ("name=past policies.a.past.size=2 policies.a.engine.process=own", 4, 0),
        ("model=start policies.a.engine=sglang policies.a.engine.device=cuda", 1, 1),
        ("model=start policies.a.engine=sglang policies.a.engine.url=http://127.0.0.1:9", 1, 0),
    ],
)
def test_engines_of_policies_that_do_not_learn_have_places_unless_they_are_the_drivers(
    policy: str, engines: int, own: int
) -> None:
    """`own`: engines that occupy something else than the main policy's, on demands of their own."""
    words = f"env=kuhn_poker model=tiny cluster=ray agents.second=a policies.a.{policy}"
    config = complete(parse_words(words.split()))
    wanted = run_demand(config.learners, config.policies, config.cluster, {"main": Split()}, CPUS).wanted()
    assert wanted.engines.count == engines
    assert sum(each.count for each in wanted.others if each.role == "engine") == own


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("cluster=ray cluster.address=ray://head:10001", "is the address of Ray's client"),
        ("cluster.address=auto", "cluster.address=auto has no effect without cluster=ray: leave it out"),
        ("cluster.environment=[HOME]", "cluster.environment has no effect without cluster=ray"),
        (
            "cluster.environments=1 cluster.max_environments=2",
            "max_environments=2 has no effect without cluster=ray",
        ),
        ("cluster.resources.environments.cpus=2", "environments.cpus=2 has no effect without cluster=ray"),
    ],
)
def test_what_could_only_be_left_out_of_account_is_refused(words: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        complete(parse_words(["env=calculator", *words.split()]))
