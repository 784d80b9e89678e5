"""What `make test` leaves to `make nightly`: the dear half of a promise whose other half it keeps.

A test stands here only with another one that the shorter run has and that would find the same fault in a cheaper form:
one server in place of two, two layers in place of thirty, one row of a covering design in place of all of them.
"""

from __future__ import annotations

import pytest

ENGINES, MEGATRON, CLUSTER = "tests/rollout/engines/", "tests/train/backends/megatron/", "tests/cluster/"
SCHEDULER = f"{ENGINES}test_scheduler.py::test_a_turn_is_its_own_whatever_happens_beside_it_in_hundreds_of_turns"
ADAPTERS = (
    f"{ENGINES}test_served_adapters.py::test_turns_end_under_the_adapter_that_they_began_with"
    "_and_each_is_the_trainers_own"
)
CONTRACT = f"{ENGINES}test_contract.py::test_smollm2_keeps_the_numbers_and_the_text_of_the_contract"
REAL = f"{ENGINES}test_real_model.py::test_"
RESUMED = "tests/train/test_resume.py::test_four_steps_straight_equal_two_a_kill_and_two_more_to_the_last_bit"
PUBLISHED = (
    "tests/cluster/test_servers.py::test_a_run_publishes_to_a_server_on_another_node"
    "_by_which_environment_workers_generate_directly"
)
AVERAGED = (
    "tests/cluster/test_averaged.py::test_evaluations_of_the_average_in_workers_are_those_in_one_process_bit_for_bit"
)
PROGRAMS = (
    "tests/sessions/gateway/test_clients.py::test_a_runs_own_gateway_plays_a_program"
    "_and_all_of_its_turns_can_be_trained"
)
UPDATES = (
    f"{MEGATRON}test_sequences.py::test_two_updates_with_pairs_or_verdicts_over_ranks_are_those_of_the_torch_trainer"
)
ON_NODES = f"{CLUSTER}test_sessions.py::test_what_it_does_for_the_driver_is_what_the_driver_does"
PRINTED = "tests/test_commands.py::test_a_command_runs_as_printed"
VIEWED = "tests/viewer/test_scripts.py::test_no_text_is_more_than_text_"
UNREWARDED = (
    "tests/train/test_lost_tokens.py::test_a_run_without_rewards_ends_after_its_first_step_and_keeps_what_it_did"
)
DYING = "tests/train/test_publication.py::test_a_run_whose_trainer_dies_at_every_call_is_proven_step_for_step"
FLEET = "tests/rollout/fleet/test_contract.py::test_a_fleet_keeps_the_contract_of_an_engine"
COOKBOOK = "tests/train/server/test_cookbook.py::test_the_cookbooks_"
KILLED = "tests/train/server/test_sdk.py::test_a_killed_server_goes_on_and_no_client_notices"
NIGHTLY: dict[str, str] = {
    f"{PUBLISHED}[vllm": f"{PUBLISHED}[sglang",
    f"{ADAPTERS}[vllm": f"{ADAPTERS}[sglang",
    f"{SCHEDULER}[torch": f"{SCHEDULER}[auto",
    f"{CONTRACT}[whole": f"{CONTRACT}[two layers",
    f"{REAL}a_real_model_is_trained_by_megatron_on_what_sglang_generates_with_its_newest_weights": (
        f"{REAL}sglang_in_float32_agrees_with_the_trainer_on_a_real_model"
    ),
    f"{RESUMED}[ppo": f"{RESUMED}[grpo",
    f"{MEGATRON}test_checkpoint.py::test_weights_and_moments_are_the_same_under_every_layout_that_continues": (
        f"{MEGATRON}test_checkpoint.py::test_what_was_saved_under_one_layout_resumes_under_another"
    ),
    f"{MEGATRON}test_families.py::test_models_check_prints_the_difference_and_agrees": (
        f"{MEGATRON}test_families.py::test_models_check_finds_a_family_that_rotates_otherwise"
    ),
    f"{UPDATES}[{{'tensor_parallel': 2}}-kto": f"{UPDATES}[{{'context_parallel': 2}}-kto",
    f"{AVERAGED}[ray": f"{AVERAGED}[local",
    PROGRAMS: "tests/sessions/gateway/test_trained_clients.py::test_a_run_trains_each_client_for_a_step",
    "tests/test_faults.py::test_a_run_whose_disk_is_really_full_says_so_and_is_resumed_once_there_is_room": (
        "tests/train/test_full_disk.py::test_a_run_whose_disk_was_full_anywhere_goes_on_as_if_it_had_not_been"
    ),
    "tests/test_faults.py::test_a_run_ends_the_same_bit_for_bit_whatever_happens_to_it": (
        "tests/train/test_recovery.py::test_a_run_whose_trainer_and_engine_die_ends_like_one_whose_parts_live"
    ),
    f"{ON_NODES}[ranks": f"{ON_NODES}[critic",
    f"{CLUSTER}test_ranks.py::test_tensor_parallel_ranks_are_on_one_node_and_learn_as_without_a_cluster": (
        f"{CLUSTER}test_ranks.py::test_ranks_on_two_nodes_learn_as_on_one_and_another_trainer_goes_on_where_one_is_killed"
    ),
    f"{CLUSTER}test_rewards.py::test_environment_workers_on_ray_nodes_have_rewards_computed"
    "_on_the_nodes_that_the_settings_name": (
        f"{CLUSTER}test_rewards.py::test_a_run_with_reward_workers_learns_the_same_also_where_one_stops"
    ),
    f"{CLUSTER}test_gateway_runs.py::test_programs_of_environment_workers_reach_gateways"
    "_on_the_node_that_the_settings_name_by_https": (
        f"{CLUSTER}test_programs.py::test_programs_on_another_node_reach_its_gateway_by_https"
        "_and_change_nothing_where_a_worker_stops"
    ),
    f"{MEGATRON}test_adapters.py::test_ranks_train_save_and_export_an_adapter_as_one_process_does"
    "_also_after_a_warm_start": (
        "tests/train/lora/test_ranks.py::test_two_ranks_train_an_adapter_as_one_process_does_also_after_a_warm_start"
    ),
    "tests/train/backends/test_loaded.py::test_megatron_names_the_layer_that_it_loaded_wrong_whichever_rank_holds_it": (
        f"{MEGATRON}test_families.py::test_models_check_finds_a_family_that_rotates_otherwise"
    ),
    f"{CLUSTER}test_run.py::test_a_trainer_goes_on_elsewhere_when_its_node_is_drained_and_learns_the_same": (
        f"{CLUSTER}test_ranks.py::test_a_run_goes_on_from_its_last_checkpoint_where_a_rank_dies"
    ),
    "tests/test_supports_benchmark.py::test_its_small_form_trains_with_calls_under_a_grammar"
    "_and_as_if_no_set_was_recorded": (
        "tests/train/test_grammar_run.py::test_a_run_under_a_json_schema_learns_within_it_and_is_run_again_bit_for_bit"
    ),
    "tests/test_chain_benchmark.py::test_its_small_form_gives_each_part_the_chains_tokens_and_finds_the_base_flat": (
        "tests/train/chain/test_chain.py::test_a_chain_is_its_runs_and_the_same_after_kills_anywhere"
    ),
    "tests/test_learning_benchmark.py::test_its_small_form_measures_a_policy_before_and_after_its_steps": (
        "tests/train/test_learning.py"
        "::test_the_calculator_agent_rises_from_below_half_to_eight_in_ten_on_tasks_it_never_saw"
    ),
    "tests/train/lora/test_benchmark.py::test_an_adapters_run_begins_with_the_policy_of_the_whole_models"
    "_and_a_finished_one_is_read_again": (
        "tests/train/lora/test_benchmark.py"
        "::test_samples_are_counted_up_to_the_step_whose_reward_is_high_enough_in_the_mean_of_five"
    ),
    f"{COOKBOOK}supervised_loop_learns_and_a_killed_server_has_every_step": KILLED,
    f"{COOKBOOK}loop_of_rewards_learns_and_a_killed_server_has_every_step": KILLED,
    f"{UNREWARDED}[1": f"{UNREWARDED}[0",
    f"{DYING}[False": f"{DYING}[True",
    f"{FLEET}[inproc": f"{FLEET}[disk",
    f"{VIEWED}on_any_page_of_the_viewer[with the": f"{VIEWED}on_any_page_of_the_viewer[without the",
    f"{VIEWED}in_a_report[with the": f"{VIEWED}in_a_report[without the",
    f"{PRINTED}[agentrl check env=retail hostile=1000": (
        "tests/envs/test_retail.py::test_it_keeps_the_contract_also_with_tau2_benchs_data"
    ),
    f"{PRINTED}[agentrl train env=gsm8k env.path=problems.jsonl model=smollm2-135m engine=sglang": (
        f"{PRINTED}[agentrl train env=swe model=\\u2026 engine=sglang 'fleet.urls"
    ),
    f"{PRINTED}[agentrl train -c examples/chains/best_of_practice.yaml]": (
        "tests/train/chain/test_best_of.py"
        "::test_the_best_sessions_are_what_the_next_stage_imitates_and_a_kill_changes_nothing"
    ),
}
"""The beginning of a test's address, and of the address of what stands in for it.

Faults planted in environments mark themselves: `make test` has the first of each rule.
"""


def is_nightly(test: str) -> bool:
    """Whether `make test` leaves out the test of an address."""
    return test.startswith(tuple(NIGHTLY))


class Nightly:
    """Marks the tests of the table, before `-m` is applied."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if is_nightly(item.nodeid):
                item.add_marker(pytest.mark.nightly)
