"""What README.md and docs/*.md tell a user to type works as printed: every shell command is executed, at a small size.

A command that is not in the table fails the first test. Commands are run as they are printed, in a folder that has
what they name; what a table entry adds makes them small. The model that they call smollm2-135m is a random one with
its heads, already in the cache, and `.venv-sglang/bin/python` starts a small server that speaks SGLang's protocol
(the real one is `test_real_model.py`'s).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentrl.cli import app
from agentrl.overrides import merge, merge_settings, read_yaml, validate
from agentrl.rollout.workers.serve_process import ServeConfig
from agentrl.train.chain.planning import plan_chain
from agentrl.train.driver.setup import complete
from agentrl.train.evaluation.suite.results import CompareConfig
from agentrl.train.record.chain import describes_chain
from tests.command_line import run_agentrl

ROOT = Path(__file__).resolve().parents[1]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SKILLS, *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OTHERS = {"environments.md", "adapters.md"}
"""Pages whose Python is tested by a module of its own."""

QUICK = "rollout.turn_tokens=8 rollout.max_turns=1 eval.tasks=2 "
TRAINED = QUICK + "rollout.groups_per_step=1 rollout.group_size=2 weights.probe_tokens=0 weights.start_tokens=0 "
SEEN = TRAINED + "steps=1 algo.minibatches=1 warm_start.steps=1 warm_start.batch=2 warm_start.demos=4"


@dataclass(frozen=True)
class Run:
    """Execute it, with `more` words behind it, and others in place of some: `instead`; `slow` ones take seconds."""

    more: str = ""
    instead: dict[str, str] = field(default_factory=dict)
    slow: bool = True
    servers: tuple[str, ...] = ()
    """Addresses at which a small server runs meanwhile."""


@dataclass(frozen=True)
class Elsewhere:
    """Another test executes it: its file and name."""

    where: str


@dataclass(frozen=True)
class Left:
    """It can't be executed by a test; why."""

    reason: str


SWE = Elsewhere(
    "tests/envs/swe/test_env.py::test_the_expert_solves_a_task_through_the_tools_and_saying_nothing_does_not"
)
CHECK = "tests/test_cli.py::test_check_says_that_a_good_environment_keeps_its_contract_and_what_a_bad_one_breaks"
STORE = "tests/sessions/test_integrity.py::test_the_command_line_checks_and_salvages"
REPLAY = "tests/train/test_replay.py::test_other_seeds_give_other_sessions_with_a_value_and_are_stored_beside_the_run"
VERIFY = "tests/train/test_verify.py::test_the_command_ends_with_0_1_or_2"
TERMINAL = "tests/viewer/test_terminal.py"
ADAPTERS = "tests/envs/adapters/test_adapters.py"
REAL = "tests/rollout/engines/test_real_model.py"
PLAY = "tests/envs/test_play.py"
TINKER = "tests/train/server/test_sdk.py::test_"
_FUNCTIONS = "tests/envs/adapters/test_functions.py::test_"
REMOTE = "tests/tools/sandbox/test_remote.py"
SERVERS = "engine.python=.venv-sglang/bin/python fleet.engines=2 engine.device=cpu "
COMMANDS: dict[str, Run | Elsewhere | Left] = {
    "make train": Elsewhere(
        "tests/train/test_learning.py"
        "::test_the_calculator_agent_rises_from_below_half_to_eight_in_ten_on_tasks_it_never_saw"
    ),
    "make test": Left("it is what runs this test"),
    "agentrl models get smollm2-135m": Run(slow=False),
    "agentrl train env=gsm8k env.path=problems.jsonl model=smollm2-135m steps=3": Run(TRAINED),
    "agentrl eval env=gsm8k env.path=problems.jsonl model=smollm2-135m eval.n=4": Run(QUICK, slow=False),
    "agentrl train env=gsm8k env.path=problems.jsonl model=smollm2-135m "
    "engine=sglang engine.python=.venv-sglang/bin/python fleet.engines=2 "
    "trainer=megatron trainer.pipeline_parallel=2": Run(TRAINED + "steps=1 engine.device=cpu"),
    "agentrl train env=calculator agent=examples/openai_agent/agent.py:agent": Elsewhere(
        "tests/train/test_learning.py::test_an_agent_program_is_trained_through_the_gateway_without_a_change"
    ),
    "agentrl train env=calculator agent=examples/openai_agent/agent.py:agent cluster.environments=2 "
    "gateway.host=node": Elsewhere(
        "tests/cluster/test_programs.py"
        "::test_programs_on_another_node_reach_its_gateway_by_https_and_change_nothing_where_a_worker_stops"
    ),
    'agentrl train env=calculator agent="opencode run" \'gateway.exclude=[one_turn,"prompt=(?i)summari[sz]e"]\'': Left(
        "opencode is in an environment of its own; tests/sessions/gateway/test_clients.py runs it where it is made"
    ),
    "agentrl train env=calculator agent=agent.py:agent gateway.forward.url=http://127.0.0.1:9000/v1 "
    "'gateway.forward.models=[text-embedding-3-small]'": Left(
        "a server of embeddings; tests/sessions/gateway/test_forwarding.py has one"
    ),
    'agentrl eval env=calculator agent="python my_agent.py" model=PATH': Run(QUICK, {"model=PATH": "model=model"}),
    "uv venv .venv-sglang && uv pip install --python .venv-sglang/bin/python sglang==0.5.23": Left(
        "ten gigabytes; `make engines` installs the same, and CI runs that"
    ),
    "uv venv .venv-vllm && uv pip install --python .venv-vllm/bin/python vllm==0.32.0": Left("the same"),
    "agentrl train env=gsm8k model=smollm2-135m engine=sglang engine.python=.venv-sglang/bin/python "
    "engine.dtype=bfloat16": Elsewhere(
        f"{REAL}::test_a_real_model_is_trained_by_megatron_on_what_sglang_generates_with_its_newest_weights"
    ),
    "agentrl serve model=smollm2-135m engine=sglang engine.python=.venv-sglang/bin/python port=8000": Run(
        "engine.device=cpu", {"port=8000": "port=0"}
    ),
    "agentrl train env=swe model=… engine=sglang fleet.engines=4 weights.mode=retract": Run(
        TRAINED + SERVERS + "steps=1",
        {"env=swe": "env=calculator", "model=…": "model=model", "fleet.engines=4": "env.max_steps=2"},
    ),
    "agentrl train env=swe model=… engine=sglang 'fleet.urls=[http://a:30000,http://b:30000]' "
    "weights.dir=/shared/weights": Run(
        TRAINED + "steps=1 engine.device=cpu",
        {"env=swe": "env=calculator", "model=…": "model=model", "weights.dir=/shared/weights": "weights.dir=shared"},
        servers=("http://a:30000", "http://b:30000"),
    ),
    "agentrl train env=calculator model=smollm2-135m engine=sglang weights.prove_every=1": Elsewhere(
        "tests/rollout/engines/test_sglang.py"
        "::test_a_publication_to_sglang_with_a_stale_tensor_is_found_by_a_server_that_loaded_the_weights"
    ),
    "agentrl envs": Run(slow=False),
    "agentrl envs env=retail env.level=2 n=20": Run(instead={"n=20": "n=2"}, slow=False),
    "agentrl check env=retail hostile=1000": Run("scored=6", instead={"hostile=1000": "hostile=2"}),
    "agentrl eval env=math_tools env.level=4 policy=expert eval.tasks=20": Run(slow=False),
    "agentrl eval env=text_adventure env.level=3 policy=expert eval.tasks=4": Run(
        instead={"env.level=3": "env.level=1"}, slow=False
    ),
    "agentrl eval env=data_analysis env.level=3 policy=expert eval.tasks=20": Run(slow=False),
    "agentrl eval env=document_search env.level=3 policy=expert eval.tasks=10": Run(slow=False),
    "agentrl sandbox serve host=0.0.0.0 hosts=[box1] key_file=box.key tls_certificate=box.pem tls_key=box-key.pem": (
        Elsewhere(f"{REMOTE}::test_the_server_speaks_https_to_whoever_trusts_its_certificate")
    ),
    "agentrl train env=terminal sandbox=remote sandbox.url=https://box1:8700 sandbox.key_file=box.key": Elsewhere(
        f"{REMOTE}::test_a_runs_sandboxes_are_those_of_the_server_that_its_settings_name"
    ),
    "agentrl check sandbox=remote sandbox.url=https://box1:8700 sandbox.key_file=box.key": Elsewhere(
        f"{REMOTE}::test_the_remote_backend_conforms"
    ),
    "agentrl eval env=terminal env.level=2 policy=expert eval.tasks=10": Elsewhere(
        "tests/envs/test_terminal.py::test_the_expert_solves_every_kind_and_an_agent_that_says_nothing_none"
    ),
    "agentrl eval env=web_forms env.level=3 policy=expert eval.tasks=20": Run(slow=False),
    "agentrl eval env=web_shop env.level=2 policy=expert eval.tasks=20": Run(slow=False),
    "agentrl eval env=liars_dice env.players=3 env.dice=2 policy=expert eval.tasks=20": Run(slow=False),
    "agentrl eval env=retail env.level=1 policy=expert eval.tasks=20": Run(slow=False),
    "agentrl train env=retail env.path=tau2_retail env.customer=policy agents.customer=simulator "
    "policies.simulator.model=start model=…": Left(
        "hours with a real model; the two agents are tested in test_retail.py"
    ),
    "agentrl train -c examples/several_agents/hiding.yaml": Elsewhere(
        "tests/rollout/test_past.py::test_a_run_that_goes_on_from_a_checkpoint_has_the_same_games_metrics_and_weights"
    ),
    **dict.fromkeys(
        [f"agentrl train -c examples/several_agents/{name}.yaml" for name in ("critics", "demand", "relay")],
        Run(TRAINED.replace("rollout.max_turns=1 ", "") + "eval.n=1 steps=1 warm_start.steps=2 warm_start.demos=16"),
    ),
    "agentrl train env=kuhn_poker algo=ppo algo.value_view=1": Run(
        TRAINED.replace("rollout.max_turns=1 ", "") + "eval.n=1 steps=1 warm_start.steps=2 warm_start.demos=16"
    ),
    "agentrl check env=oracle.py:Oracle": Run("scored=6", slow=False),
    **dict.fromkeys(
        ("agentrl init my-env", "pip install -e 'my-env[test]'", "agentrl check env=my-env"),
        Elsewhere("tests/envs/test_init.py::test_the_package_installs_passes_its_own_tests_is_checked_and_trains"),
    ),
    **dict.fromkeys(
        ("agentrl play env=my-env", "agentrl play env=castle task=3 split=eval"),
        Elsewhere(f"{PLAY}::test_lines_of_a_pipe_play_an_episode_that_the_viewer_lists"),
    ),
    "agentrl play env=castle from=runs/play-castle session=SESSION_ID": Elsewhere(
        "tests/envs/test_play_again.py::test_a_session_is_played_again_turn_by_turn_to_the_same_end"
    ),
    "agentrl view runs/play-castle": Elsewhere(
        "tests/viewer/test_app.py::test_the_command_serves_until_it_is_interrupted"
    ),
    "agentrl train env=oracle.py:Oracle": Run(TRAINED + "steps=1 warm_start.steps=2 warm_start.demos=16"),
    "agentrl train env=calculator algo=examples/plugins/lite_ppo.py "
    "algo.loss=examples/plugins/tempered.py steps=2": Run(
        TRAINED + "warm_start.steps=2 warm_start.demos=16", {"steps=2": "steps=1"}
    ),
    "agentrl eval env=oracle.py:Oracle policy=noop": Run(slow=False),
    "agentrl train env=calculator agent=examples/openai_agent/agent.py:agent cluster.environments=2 "
    "cluster.gateways=1": Elsewhere(
        "tests/cluster/test_gateway_runs.py::test_a_run_with_gateway_workers_learns_the_same_also_where_one_stops"
    ),
    "agentrl train env=calculator rewards.judge=examples/plugins/reward_service.py:Service "
    "rewards.judge.url=http://127.0.0.1:9000/score cluster.rewards=2": Elsewhere(
        "tests/cluster/test_rewards.py::test_a_run_with_reward_workers_learns_the_same_also_where_one_stops"
    ),
    "agentrl train env=calculator rewards.judge=examples/plugins/reward_service.py:Service "
    "rewards.judge.url=http://127.0.0.1:9000/score rewards.judge.weight=0.5": Elsewhere(
        "tests/plugins/test_reward_service.py"
        "::test_its_score_counts_beside_the_environments_own_and_a_failed_call_is_repeated"
    ),
    "agentrl train env=calculator tools.files.name=mcp "
    'tools.files.command="npx -y @modelcontextprotocol/server-filesystem {folder}"': Left(
        "it fetches a server from npm; tests/envs/adapters/inside/tools_adapter.py runs one of Python's"
    ),
    "agentrl eval env=inspect:arithmetic.py@addition model=PATH": Left(
        "the library is not in .venv; tests/envs/adapters/inside/inspect_adapter.py plays such files"
    ),
    "agentrl eval env=inspect:inspect_evals/gsm8k policy=https://api.example.com/v1 api.model=NAME": Left(
        "its package of tasks, and a model behind an API"
    ),
    "agentrl train env=openenv:http://127.0.0.1:8000 env.returns=[-1,1]": Left(
        "a server that runs; tests/envs/adapters/inside/openenv_adapter.py starts one"
    ),
    "agentrl eval env=nemo_gym:http://127.0.0.1:8000 env.path=train.jsonl env.eval_path=test.jsonl model=PATH": Left(
        "a server that runs; tests/envs/adapters/inside/nemo_gym_adapter.py starts one"
    ),
    "agentrl train env=verifiers:wordle": Left("an environment of their hub, which needs its package"),
    "agentrl eval env=verifiers:my_env.py:load_environment env.difficulty=hard policy=noop": Left(
        "the library is not in .venv; tests/envs/adapters/inside/verifiers_adapter.py plays such files"
    ),
    "agentrl train env=pettingzoo:tictactoe-v3 agents.player_2=rival policies.rival=demonstrator": Left(
        "the library is not in .venv; tests/envs/adapters/inside/pettingzoo_adapter.py plays the game"
    ),
    "agentrl train env=pettingzoo:rps-v2 'env.actions=[rock,paper,scissors]'": Left(
        "the library is not in .venv; tests/envs/adapters/inside/pettingzoo_adapter.py plays the game"
    ),
    "agentrl train env=textarena:TicTacToe-v0 agents.player_1=rival policies.rival=demonstrator": Left(
        "the library is not in .venv; tests/envs/adapters/inside/textarena_adapter.py plays the game"
    ),
    "agentrl train env=gymnasium:FrozenLake-v1 env.is_slippery=false 'env.actions=[left,down,right,up]' "
    "env.observe=ansi": Elsewhere(f"{ADAPTERS}::test_a_tiny_model_is_trained_in_an_adapted_environment"),
    "agentrl train env=calculator dry_run=true": Run(slow=False),
    "agentrl train env=shapes": Run(SEEN),
    "agentrl train env=grid_camera": Run(SEEN),
    "agentrl check env=shapes": Run("scored=4 tasks=4"),
    "agentrl train env=speaker_listener agents.listener=other policies.other.trainer=torch algo.kl_coef=0.03": Run(
        SEEN
    ),
    "agentrl train env=speaker_listener algo=maac algo.value_path=joint algo.value_trunk=own": Elsewhere(
        "tests/test_teams_benchmark.py::test_two_policies_learn_with_critics_of_joint_paths"
    ),
    "agentrl serve-training model=models/qwen3-1.7b names=Qwen/Qwen3-1.7B port=8600": Elsewhere(
        f"{TINKER}it_ends_gracefully_and_keeps_a_folder_for_each_tenant"
    ),
    "export TINKER_BASE_URL=http://127.0.0.1:8600 TINKER_API_KEY=tml-…": Elsewhere(
        f"{TINKER}a_supervised_loop_learns_and_prefixes_are_computed_once"
    ),
    "python my_loop.py": Elsewhere(f"{TINKER}a_supervised_loop_learns_and_prefixes_are_computed_once"),
    "agentrl serve-training resume=runs/serve-training-20260101-120000 port=8600": Elsewhere(
        f"{TINKER}a_killed_server_goes_on_and_no_client_notices"
    ),
    "agentrl train env=calculator trainer=fsdp trainer.ranks=2": Elsewhere(
        "tests/train/backends/fsdp/test_trainer.py"
        "::test_a_run_whose_rank_is_killed_publishes_resumes_and_ends_as_one_process_does"
    ),
    "agentrl doctor cluster=ray cluster.address=auto folder=runs": Elsewhere(
        "tests/cluster/test_doctor.py::test_every_node_of_a_ray_cluster_says_what_it_has_and_reaches_the_others"
    ),
    "agentrl doctor cluster=ray cluster.address=auto gateway.host=node gateway.tls_certificate=cert.pem "
    "gateway.tls_key=key.pem": Elsewhere(
        "tests/cluster/test_doctor.py::test_every_node_of_a_ray_cluster_says_what_it_has_and_reaches_the_others"
    ),
    "agentrl doctor cluster=ray cluster.address=auto images=[agentrl/base:latest] send_images=true": Elsewhere(
        "tests/tools/sandbox/test_delivery.py"
        "::test_a_host_sends_an_image_to_another_and_refuses_one_that_it_does_not_have"
    ),
    "echo 'ranks: 4' > runs/NAME/trainer.yaml": Elsewhere(
        "tests/train/test_resizing.py::test_a_run_goes_on_with_the_other_trainer_from_the_step_that_it_had_done"
    ),
    "ray job submit --address http://HEAD:8265 --no-wait -- agentrl train env=calculator cluster=ray "
    "cluster.address=auto run_dir=/shared/runs/first": Left(
        "the job server needs ray[default], which CI does not have"
    ),
    **dict.fromkeys(
        (
            "agentrl plan model=qwen3-0.6b nodes=1 gpus=8 memory=80 show=3",
            "agentrl plan model=qwen3-8b nodes=2 gpus=8 memory=80 show=3",
            "agentrl plan model=qwen3-30b-a3b nodes=4 gpus=8 memory=80 show=3",
            "agentrl plan model=qwen3-235b-a22b nodes=16 gpus=8 memory=80 show=3",
        ),
        Elsewhere("tests/train/test_plan.py::test_the_tables_of_the_documentation_are_what_plan_prints"),
    ),
    "agentrl view runs/": Elsewhere("tests/viewer/test_app.py::test_the_command_serves_until_it_is_interrupted"),
    "agentrl top RUN": Elsewhere(f"{TERMINAL}::test_a_finished_run_is_shown_once_and_not_waited_for"),
    "agentrl sessions RUN --worst 5 phase=train step=40..50": Elsewhere(
        f"{TERMINAL}::test_sessions_are_the_worst_and_the_best_of_those_that_fit_the_filters"
    ),
    "agentrl sessions RUN status=completed --export all.parquet": Elsewhere(
        f"{TERMINAL}::test_sessions_that_fit_are_exported_whole_into_a_file_of_a_known_kind"
    ),
    "agentrl sessions RUN --follow environment=retail": Elsewhere(
        "tests/viewer/test_following.py::test_the_command_ends_where_no_run_is_under_way"
    ),
    'agentrl sessions RUN --grep "division by zero" --json': Elsewhere(
        f"{TERMINAL}::test_sessions_are_found_by_a_text_in_a_tool_call_or_its_answer"
    ),
    "agentrl diff RUN RUN": Elsewhere(
        f"{TERMINAL}::test_nothing_that_a_session_holds_reaches_the_terminal_as_a_command"
    ),
    'agentrl sessions RUN where="score < 1 and turns > 3"': Elsewhere(
        f"{TERMINAL}::test_sessions_are_found_by_a_condition"
    ),
    "agentrl report RUN --out run.html": Elsewhere(f"{TERMINAL}::test_the_report_is_written_where_it_is_asked_for"),
    "agentrl report RUN --all": Elsewhere(
        f"{TERMINAL}::test_all_pages_link_to_each_other_alone_and_every_session_is_whole"
    ),
    "agentrl sessions RUN --check": Elsewhere(STORE),
    "agentrl sessions RUN --salvage saved.db": Elsewhere(STORE),
    "agentrl verify runs/NAME": Elsewhere(VERIFY),
    "agentrl verify runs/NAME --weights": Elsewhere(VERIFY),
    "agentrl verify runs/NAME --json": Elsewhere(VERIFY),
    "agentrl replay runs/NAME/SESSION turn=2": Elsewhere(REPLAY),
    "agentrl replay runs/NAME/SESSION turn=2 n=8": Elsewhere(REPLAY),
    "agentrl replay runs/NAME/SESSION turn=2 model=FOLDER": Elsewhere(REPLAY),
    "agentrl check env=shop.py:Shop": Elsewhere(CHECK),
    "agentrl check env=shop.py:Shop tasks=10 seed=1 limit=300": Elsewhere(CHECK),
    "agentrl check env=swe": Elsewhere(
        "tests/envs/swe/test_builtin.py::test_both_forms_keep_the_environments_contract"
    ),
    "agentrl eval env=swe policy=expert": SWE,
    "agentrl eval env=swe policy=noop": SWE,
    "agentrl eval env=swe model=… engine=sglang": SWE,
    "agentrl train env=swe": Elsewhere(
        "tests/envs/swe/test_infra.py::test_a_run_in_which_containers_die_trains_on_its_full_number_of_groups"
    ),
    "agentrl swe generate PACKAGE --out FOLDER --count 20 --seed 0": Elsewhere(
        "tests/envs/swe/test_generate.py::test_the_command_makes_the_same_tasks_of_the_same_seed"
    ),
}


def printed() -> dict[str, str]:
    """Each shell command, in one line without its comments, and the page that it stands on."""
    found: dict[str, str] = {}
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text()):
            if language == "sh":
                lines = block.replace("\\\n", " ").splitlines()
                bare = [re.sub(r"\s+", " ", re.sub(r"(^|\s)#.*", "", line)).strip() for line in lines]
                found |= dict.fromkeys(filter(None, bare), page.name)
    return found


REWARDS = "tests/docs/test_rewards_page.py::test_commands_that_are_printed_run"
COMMANDS |= {command: Elsewhere(REWARDS) for command, page in printed().items() if page == "rewards.md"}

_OFFLINE = "tests/train/offline/test_offline.py::test_"
_SUPERVISED = Elsewhere(f"{_OFFLINE}supervised_learning_lowers_the_held_out_loss_and_is_the_same_after_a_kill")
_RECORDED = Elsewhere(f"{_OFFLINE}recorded_sessions_are_imitated_and_reinforced_with_their_own_log_probabilities")
_PAIRS = Elsewhere(
    "tests/train/offline/test_pairs_of_files.py::test_dpo_on_a_file_raises_the_held_out_margin_and_resumes_bit_for_bit"
)
_CHAIN = "tests/train/chain/test_chain.py::test_"
_SCORES = Elsewhere(
    "tests/train/offline/test_score_runs.py::test_a_policy_that_is_trained_against_a_learned_reward_gains_the_true_one"
)
_LORA = "tests/train/lora/test_lora.py::test_"
_MIGRATION = "tests/train/migration/test_"
PAGES_OF_OTHERS = {
    ("several_agents.md", "agentrl train -c examples/several_agents/demand.yaml agents.right=rival"): Elsewhere(
        "tests/train/test_several_learners.py::"
        "test_each_policy_learns_what_its_own_run_would_and_a_killed_run_goes_on_bit_for_bit"
    ),
    ("migration.md", "agentrl convert data"): Elsewhere(
        f"{_MIGRATION}data.py::test_the_command_says_what_it_left_out_and_ends_with_1_where_nothing_is_carried"
    ),
    ("migration.md", "agentrl convert settings run.sh"): Elsewhere(
        f"{_MIGRATION}settings.py::test_a_script_of_slimes_becomes_a_command_that_is_valid"
    ),
    ("first_minutes.md", "agentrl eval env=questions env.path=questions.csv"): Run(slow=False),
    ("first_minutes.md", "agentrl train env=questions env.path=questions.csv"): Elsewhere(
        "tests/envs/test_projects.py::test_the_project_of_an_agent_trains"
    ),
    ("first_minutes.md", "agentrl init my-questions"): Run(slow=False),
    ("first_minutes.md", "agentrl doctor"): Run(slow=False),
    ("recipes.md", "agentrl train -c recipes/calculator-laptop.yaml"): COMMANDS["make train"],
    ("recipes.md", "agentrl plan -c recipes/maths-8b-node.yaml"): Elsewhere(
        "tests/docs/test_recipes.py::test_a_recipe_is_planned_and_takes_the_memory_that_its_head_says"
    ),
    ("offline.md", "printf"): Left("it writes the file that the next command reads"),
    ("offline.md", "agentrl train algo=sft data=sums.jsonl"): _SUPERVISED,
    ("offline.md", "agentrl verify runs/sums"): _SUPERVISED,
    ("offline.md", "agentrl train algo=dpo data=pairs.jsonl"): _PAIRS,
    ("offline.md", "agentrl train algo=reward_model data=pairs.jsonl"): _SCORES,
    ("rewards.md", "agentrl train env=gsm8k env.path=train.jsonl rewards.learned=reward_model"): _SCORES,
    ("offline.md", "agentrl reject env=calculator"): Elsewhere(
        "tests/train/test_reject.py::test_the_best_sessions_are_a_file_that_sft_reads_and_the_same_command_goes_on"
    ),
    ("offline.md", "agentrl train algo=sft data=best.jsonl"): _SUPERVISED,
    ("offline.md", "agentrl train env=calculator"): _RECORDED,
    ("offline.md", "agentrl train algo=sft data=runs/recorded"): _RECORDED,
    ("offline.md", "agentrl train algo=grpo data=runs/recorded"): _RECORDED,
    ("chains.md", "agentrl train -c examples/chains/best_of_practice.yaml"): Run(
        TRAINED + "warm_start.steps=1 warm_start.demos=4 steps=2 algo.minibatches=1 stages.imitate.data.min_reward=0"
    ),
    ("chains.md", "agentrl train -c examples/chains/best_of_practice.yaml dry_run=true"): Run(slow=False),
    ("chains.md", "agentrl verify runs/practice"): Elsewhere(
        f"{_CHAIN}a_chain_is_its_runs_and_the_same_after_kills_anywhere"
    ),
    ("migration.md", "agentrl train env=prompts env.path=examples/migration/rows.jsonl rewards.short=trl"): Run(
        TRAINED + "steps=1 warm_start.steps=0"
    ),
    ("migration.md", "agentrl train env=prompts env.path=examples/migration/rows.jsonl rewards.right"): Elsewhere(
        f"{_FUNCTIONS}a_reward_function_gets_its_rows_columns_and_gives_its_value_plain_or_async"
    ),
    ("migration.md", "agentrl train env=trl:"): Elsewhere(
        f"{_FUNCTIONS}an_environment_of_trl_has_its_methods_as_tools_and_its_own_reward"
    ),
    ("migration.md", "agentrl train env=verl:"): Elsewhere(
        f"{_FUNCTIONS}functions_and_classes_of_trl_and_verl_run_beside_their_libraries"
    ),
    ("migration.md", 'agentrl train env=prompts env.path=examples/migration/rows.jsonl agent="slime:'): Elsewhere(
        f"{_FUNCTIONS}a_generate_function_of_slime_is_trained_and_its_reward_function_scores_it"
    ),
    ("migration.md", "agentrl train env=prompts env.path=examples/migration/rows.jsonl model=FOLDER"): Elsewhere(
        f"{_FUNCTIONS}functions_and_classes_of_trl_and_verl_run_beside_their_libraries"
    ),
    ("lora.md", "agentrl train env=calculator lora.rank=16"): Elsewhere(
        f"{_LORA}an_adapters_learning_rate_is_ten_times_the_whole_models_and_less_below_rank_16_unless_it_is_given"
    ),
    ("lora.md", "agentrl models merge"): Elsewhere(
        f"{_LORA}merged_weights_compute_what_the_adapter_does_and_so_does_peft"
    ),
    ("lora.md", "agentrl train env=calculator model=BASE lora.adapter"): Elsewhere(
        f"{_LORA}the_reference_is_the_policy_as_it_began_also_where_it_began_with_an_adapter"
    ),
}
"""By page and how a command begins: tests of their own pages, or of what they do."""
COMMANDS |= {
    command: how
    for command, page in printed().items()
    for (own, begins), how in PAGES_OF_OTHERS.items()
    if page == own and command.startswith(begins)
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache, in which there is a model of SmolLM2's name and heads."""
    pytest.importorskip("torch")
    from agentrl.models.tiny import TinyShape, build, render

    cache = tmp_path_factory.mktemp("cache")
    texts = [render([{"role": "user", "content": f"Ann has {n} pens. How many? #### {n}"}]) for n in range(100, 160)]
    shape = TinyShape(layers=2, width=72, heads=9, kv_heads=3)
    build(cache / "agentrl" / "models" / "smollm2-135m", texts, shape=shape)
    return cache


@pytest.fixture
def folder(cache: Path, tmp_path: Path, in_tmp_path: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user types: everything that the commands name is there."""
    from agentrl.common.native import cache_dir
    from tests.rollout.fleet.token_server import interpreter

    monkeypatch.setenv("AGENTRL_CACHE", str(cache_dir()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    lines = [
        f'{{"question": "Ann has {n} pens and buys 3. How many?", "answer": "Ann has {n + 3} pens.\\n#### {n + 3}"}}\n'
        for n in range(100, 140)
    ]
    (tmp_path / "problems.jsonl").write_text("".join(lines))
    (tmp_path / "questions.csv").write_text("prompt,target\n" + "".join(f"Who is {n}?,N{n}\n" for n in range(40)))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "oracle.py").symlink_to(ROOT / "examples" / "environments" / "oracle.py")
    (tmp_path / "model").symlink_to(cache / "agentrl" / "models" / "smollm2-135m")
    (tmp_path / "my_agent.py").write_text(
        "import openai\n"
        "message = {'role': 'user', 'content': 'How many?'}\n"
        "openai.OpenAI().chat.completions.create(model='policy', messages=[message], max_tokens=4)\n"
    )
    interpreter(tmp_path / ".venv-sglang" / "bin" / "python")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return tmp_path


def small(command: str, how: Run) -> list[str]:
    """The command's words, at the size of a test."""
    for word, other in how.instead.items():
        assert word in command, f"{word} is not in {command}"
        command = command.replace(word, other)
    return shlex.split(f"{command} {how.more}")


RUNS = [
    pytest.param(command, how, marks=[pytest.mark.slow] if how.slow else [], id=command)
    for command, how in COMMANDS.items()
    if isinstance(how, Run)
]


def test_every_shell_command_of_the_docs_is_in_the_table_and_every_entry_in_the_docs() -> None:
    found = printed()
    assert {f"{page}: {command}" for command, page in found.items() if command not in COMMANDS} == set()
    assert set(COMMANDS) - set(found) == set(), "nobody is told to type this any more"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_of_commands_says_that_it_is_one(page: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert {language for language, _ in blocks} <= {"sh", "python", "toml", "yaml", "json", ""}
    assert not [block for language, block in blocks if language == "" and re.match("(agentrl|make|uv|pip) ", block)]


@pytest.mark.timeout(900)  # a busy machine takes minutes for what a quiet one does in ten seconds
@pytest.mark.parametrize(("command", "how"), RUNS)
@pytest.mark.usefixtures("folder")
@pytest.mark.slow
def test_a_command_runs_as_printed(command: str, how: Run) -> None:
    with contextlib.ExitStack() as stack:
        words = small(command, how)
        for address in how.servers:
            own = stack.enter_context(server())
            words = [word.replace(address, own) for word in words]
        if words[1] == "serve":
            served(words)
            return
        assert run_agentrl(*words[1:]) == 0


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of a server that speaks SGLang's protocol."""
    with socket.socket() as held:  # so that nobody else is given its port before the server has begun
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        command = [sys.executable, "-m", "tests.rollout.fleet.token_server", "model", str(port)]
        with subprocess.Popen(command) as process:
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                process.kill()


def served(words: list[str]) -> None:
    """A server says where it is, and ends in order when it is asked to."""
    command = [sys.executable, "-u", "-m", "agentrl", *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert re.search(r"http://\S+?:\d+", server.stdout.readline())
            server.send_signal(signal.SIGTERM)
            assert server.wait(100) == 0
        finally:
            server.kill()


@pytest.mark.parametrize("command", [command for command, how in COMMANDS.items() if isinstance(how, Elsewhere)])
def test_a_command_that_another_test_executes_is_executed_there(command: str) -> None:
    how = COMMANDS[command]
    assert isinstance(how, Elsewhere)
    file, _, name = how.where.partition("::")
    assert f"def {name}" in (ROOT / file).read_text()


def test_make_train_is_the_command_that_readme_calls_it() -> None:
    assert "\n\t$(BIN)/agentrl train env=calculator\n" in (ROOT / "Makefile").read_text()


@functools.cache
def known_commands() -> set[str]:
    """The words that stand behind `agentrl`: to build all commands takes as long as to complete a run's settings."""
    import typer

    return set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


INLINE = sorted({(page.name, code) for page in PAGES for code in re.findall(r"`(agentrl [^`\n]*)`", page.read_text())})


@pytest.mark.slow
@pytest.mark.parametrize(("page", "code"), [*INLINE, *((page, command) for command, page in printed().items())])
def test_a_command_in_a_sentence_or_block_names_commands_and_settings_that_exist(page: str, code: str) -> None:
    _, *words = shlex.split(code.partition("&&")[0]) if code.startswith("agentrl") else ["", "envs"]
    name = words[0] if words else "envs"
    assert name in known_commands(), f"{page}: {code}"
    settings = [word for word in words[1:] if "=" in word]
    known = {"oracle.py:Oracle": "calculator", "…": "calculator"}
    layers = [read_yaml(ROOT / words[words.index("-c") + 1])] if "-c" in words else []
    tree = merge_settings([word if (new := known.get(word[4:])) is None else f"env={new}" for word in settings])
    if name == "serve" and settings:
        validate(tree, ServeConfig)
    elif "suite" in tree:
        assert name == "eval"
        if compare := tree.pop("compare", None):
            validate(compare, CompareConfig)
    elif layers and describes_chain(layers[0]):
        plan_chain(*layers, tree)
    elif name in ("train", "eval") and settings:
        tree = merge(*layers, tree) if layers else tree
        if tree.pop("resume", None) or tree.pop("rerun", None):  # of a run whose settings are in its folder
            tree = {"env": {"name": "calculator"}, **tree}
        complete(tree)


# ------------------------------------------------------------------------------------------------ Python

SNIPPETS = [
    pytest.param(block, id=f"{page.name} {i}")
    for page in PAGES
    if page.name not in OTHERS
    for i, (language, block) in enumerate(BLOCK.findall(page.read_text()))
    if language == "python"
]


@pytest.mark.parametrize("block", SNIPPETS)
def test_python_on_a_page_compiles_and_imports_what_there_is(block: str) -> None:
    code = compile(block, "page", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            missing = [name for name in missing if not importlib.util.find_spec(f"{node.module}.{name}")]
            assert missing == [], f"{node.module} has no {missing}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)


def snippet(page: str, word: str) -> str:
    """The Python block of a page that holds a word."""
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
    return next(block for language, block in blocks if language == "python" and word in block)


@pytest.mark.usefixtures("in_tmp_path")
def test_a_task_is_written_as_a_folder_and_read_back_as_the_page_does_it(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(snippet("swe-tasks.md", "harbor.write"), names)
    assert names["tasks"] == [names["task"]]


def test_the_layout_of_readmes_megatron_command_fits_the_model_that_it_names() -> None:
    """It once asked for two tensor ranks of nine heads."""
    pytest.importorskip("transformers")
    from transformers import LlamaConfig

    from agentrl.train.trainers.megatron.layout import layout_of

    shape = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30, "intermediate_size": 1536}
    (command,) = (command for command in printed() if "trainer=megatron" in command)
    trainer = complete(merge_settings([word for word in shlex.split(command) if "=" in word])).trainer
    assert layout_of(trainer, LlamaConfig(hidden_size=576, **shape)).ranks == 2
