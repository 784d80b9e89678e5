"""What `make test` leaves to `make nightly`: the dear half of a promise whose other half it keeps.

A test stands here only with another one that the shorter run has and that would find the same fault in a cheaper form:
one server in place of two, two layers in place of thirty, some cases of a matrix in place of all of them.
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
SCORING = f"{ENGINES}test_sglang.py::test_sglang_keeps_the_contract[logprobs_are_those_of_scoring"
SERVERS = "tests/rollout/fleet/test_servers.py::test_"
CLIENTS = "tests/sessions/gateway/test_clients.py::test_a_"
FRAMEWORK = f"{CLIENTS}framework_makes_one_clean_path_or_branches_of_the_stated_causes"
TOOLS = f"{CLIENTS}program_with_tools_makes_one_clean_path"
RANDOM = f"{CLIENTS}program_handles_a_model_of_random_tokens_and_its_turns_are_stored_as_sampled"
TRAINED = "tests/sessions/gateway/test_trained_clients.py::test_a_run_trains_each_client_for_a_step"
STOPS = (
    f"{CLUSTER}test_trainer_access.py"
    "::test_a_process_that_stops_while_another_calls_it_is_the_trainers_death_and_a_new_trainer_goes_on"
)
SITES = "tests/envs/web/test_sites.py::test_it_keeps_the_contract"
NAMED_AGENTS = "tests/rollout/test_named_agents.py::test_"
UNCHANGED = "tests/train/test_verify_kinds.py::test_a_run_of_which_nothing_was_changed_passes"
DRAWN = (
    f"{ENGINES}test_sglang.py::test_narrowed_turns_and_those_under_a_grammar_bring_the_set_that_the_server_drew_from"
)
ROTATES = f"{MEGATRON}test_families.py::test_models_check_finds_a_family_that_rotates_otherwise"
DYING = "tests/train/test_publication.py::test_a_run_whose_trainer_dies_at_every_call_is_proven_step_for_step"
FLEET = "tests/rollout/fleet/test_contract.py::test_a_fleet_keeps_the_contract_of_an_engine"
COOKBOOK = "tests/train/server/test_cookbook.py::test_the_cookbooks_"
SERVED_IMAGES = "tests/vision/test_served_images.py::test_servers_agree_with_the_trainer_before_and_after_a_publication"
PLACED_IMAGES = (
    "tests/vision/test_served_images.py::test_a_prompts_images_are_placed_where_its_tokens_are"
    "_and_its_positions_are_transformers_own"
)
KILLED = "tests/train/server/test_sdk.py::test_a_killed_server_goes_on_and_no_client_notices"
NIGHTLY: dict[str, str] = {
    PUBLISHED: (
        f"{CLUSTER}test_run.py"
        "::test_on_two_ray_nodes_it_samples_learns_and_ends_as_in_one_process_and_the_driver_reads_nothing_of_it"
    ),
    f"{CLUSTER}test_run.py::test_policies_whose_trainers_have_ranks_learn_on_ray_nodes_as_here": (
        f"{CLUSTER}test_run.py::test_two_policies_learn_on_ray_nodes_what_they_learn_in_one_process"
    ),
    f"{ADAPTERS}[vllm": f"{ADAPTERS}[sglang",
    f"{ENGINES}test_served_adapters.py::test_twenty_publications_leave_no_memory_behind": f"{ADAPTERS}[sglang",
    f"{SCHEDULER}[torch": f"{SCHEDULER}[auto",
    f"{CONTRACT}[whole": f"{CONTRACT}[two layers",
    f"{REAL}sglang_in_float32_agrees_with_the_trainer_on_a_real_model": SCORING,
    f"{REAL}a_real_model_is_trained_by_megatron_on_what_sglang_generates_with_its_newest_weights": SCORING,
    f"{ENGINES}test_sglang.py::test_a_turn_keeps_to_its_json_schema_and_ends_with_it": (DRAWN),
    SERVED_IMAGES: PLACED_IMAGES,
    f"{RESUMED}[ppo": f"{RESUMED}[grpo",
    f"{MEGATRON}test_checkpoint.py::test_weights_and_moments_are_the_same_under_every_layout_that_continues": (
        f"{MEGATRON}test_checkpoint.py::test_what_was_saved_under_one_layout_resumes_under_another"
    ),
    f"{MEGATRON}test_families.py::test_models_check_prints_the_difference_and_agrees": (ROTATES),
    f"{AVERAGED}[ray": f"{AVERAGED}[local",
    PROGRAMS: f"{TRAINED}[a client of each protocol",
    f"{MEGATRON}test_families.py"
    "::test_a_family_that_computes_something_else_is_refused_at_start_with_the_numbers": ROTATES,
    f"{MEGATRON}test_critic.py::test_a_run_that_goes_on_in_the_same_layout_has_the_same_critic_bit_for_bit": (
        f"{MEGATRON}test_checkpoint.py::test_what_was_saved_under_one_layout_resumes_under_another[with its critic"
    ),
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
        ROTATES
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
    f"{CLUSTER}test_run.py::test_nodes_that_are_killed_under_a_run_change_nothing_of_what_it_learns": (
        f"{CLUSTER}test_ranks.py::test_ranks_on_two_nodes_learn_as_on_one_and_another_trainer_goes_on_where_one_is_killed"
    ),
    f"{STOPS}[plain-fsdp": f"{STOPS}[plain-torch",
    f"{MEGATRON}test_replay.py::test_a_run_records_publishes_and_replays": (
        f"{MEGATRON}test_run.py::test_a_run_imitates_reinforces_publishes_and_resumes_under_another_layout"
    ),
    f"{ENGINES}test_vllm.py::test_vllm_keeps_the_contract[pausing_works_in_every_mode": (
        f"{ENGINES}test_sglang.py::test_sglang_keeps_the_contract[pausing_works_in_every_mode"
    ),
    "tests/sessions/gateway/test_load_benchmark.py::test_the_parts_of_a_turn_add_up_to_its_cpu_time": (
        "tests/sessions/gateway/test_load_benchmark.py"
        "::test_the_load_benchmark_compares_turns_of_a_served_fleet_with_an_echo_and_with_its_bare_parts"
    ),
    "tests/envs/swe/test_builtin.py::test_the_expert_solves_every_task_through_the_tools": (
        "tests/envs/swe/test_env.py::test_the_expert_solves_a_task_through_the_tools_and_saying_nothing_does_not"
    ),
    f"{SITES}[web_forms": f"{SITES}[web_shop",
    f"{TRAINED}[all clients": f"{TRAINED}[a client of each protocol",
    NAMED_AGENTS + "a_hand_off_of_openais_agents_trains_both_of_its_policies": (
        NAMED_AGENTS + "a_plain_program_trains_its_planner_and_its_worker_each_by_its_own_tokens"
    ),
    "tests/test_garbage.py::test_calls_one_after_the_other_leave_no_tensors_in_the_process": (
        "tests/test_garbage.py"
        "::test_what_a_run_leaves_in_cycles_is_found_during_it_and_the_collector_is_as_before_after_it"
    ),
    "tests/sessions/renderers/test_hub.py::test_the_gate_for_published_files_passes_against_a_hub_on_the_loopback": (
        "tests/sessions/renderers/test_choice.py::test_the_table_in_the_docs_holds_for_the_real_tokenizers"
    ),
    "tests/train/lora/test_base.py::test_ranks_go_on_from_the_base_beside_their_checkpoint_too[megatron": (
        "tests/train/lora/test_base.py::test_ranks_go_on_from_the_base_beside_their_checkpoint_too[fsdp"
    ),
    "tests/envs/code/test_env.py::test_it_keeps_the_environment_contract_with_and_without_tools[False": (
        "tests/envs/code/test_env.py::test_it_keeps_the_environment_contract_with_and_without_tools[True"
    ),
    f"{FRAMEWORK}[pydantic_ai-chat": f"{FRAMEWORK}[pydantic_ai-messages",
    f"{FRAMEWORK}[pydantic_ai-responses": f"{FRAMEWORK}[pydantic_ai-messages",
    f"{FRAMEWORK}[instructor-chat": f"{FRAMEWORK}[instructor-responses",
    f"{FRAMEWORK}[mirascope-chat": f"{FRAMEWORK}[mirascope-responses",
    f"{FRAMEWORK}[haystack-responses": f"{FRAMEWORK}[haystack-chat",
    f"{FRAMEWORK}[smolagents-chat": f"{FRAMEWORK}[smolagents-code",
    f"{FRAMEWORK}[google_genai-whole": f"{FRAMEWORK}[google_genai-stream",
    f"{TOOLS}[litellm_client.py-chat": f"{TOOLS}[litellm_client.py-messages",
    f"{TOOLS}[agents_sdk.py-responses": f"{TOOLS}[agents_sdk.py-chat",
    f"{TOOLS}[langchain_client.py-chat": f"{TOOLS}[langchain_client.py-responses",
    f"{RANDOM}[litellm_client.py-chat": f"{RANDOM}[agents_sdk.py-responses",
    f"{RANDOM}[langchain_client.py-chat": f"{RANDOM}[langchain_client.py-ids",
    f"{UNCHANGED}[asynchronous": f"{UNCHANGED}[caches kept",
    f"{UNCHANGED}[resumed from a copy elsewhere": f"{UNCHANGED}[copied",
    f"{UNCHANGED}[killed as it resumed and resumed": f"{UNCHANGED}[killed before a row and resumed",
    f"{UNREWARDED}[1": f"{UNREWARDED}[0",
    f"{DYING}[False": f"{DYING}[True",
    f"{FLEET}[inproc": f"{FLEET}[disk",
    f"{VIEWED}on_any_page_of_the_viewer[with the": f"{VIEWED}on_any_page_of_the_viewer[without the",
    f"{VIEWED}in_a_report[with the": f"{VIEWED}in_a_report[without the",
    f"{PRINTED}[agentrl check env=oracle.py:Oracle]": (
        "tests/test_readme.py"
        "::test_the_readmes_environment_has_15_lines_keeps_the_contract_and_is_trained_from_a_script_as_it_says"
    ),
    f"{PRINTED}[agentrl train env=swe model=\\u2026 engine=sglang fleet.engines=4": (
        f"{PRINTED}[agentrl train env=swe model=\\u2026 engine=sglang 'fleet.urls"
    ),
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
BY_DAY: dict[str, tuple[str, ...]] = {
    f"{MEGATRON}test_checkpoint.py::test_what_was_saved_under_one_layout_resumes_under_another": (
        *("with its critic", "written beside training", "experts"),
    ),
    f"{MEGATRON}test_adapters.py::test_an_adapters_loss_gradients_and_merged_weights_are_those_of_the_torch_trainer": (
        *("smollm2-TP2 PP2", "qwen3-TP2 SP CP2 recomputed", "moonlight-CP2", "glm4_moe-TP2 SP EP2 DP2"),
    ),
    UPDATES: (
        *("{'ranks': 2}-dpo", "{'tensor_parallel': 2}-orpo", "{'context_parallel': 2}-dpo"),
        "{'context_parallel': 2}-kto",
    ),
    f"{MEGATRON}test_sequences.py::test_two_updates_with_sums_over_ranks_are_those_of_the_torch_trainer": (
        *("{'ranks': 2}", "{'pipeline_parallel': 2}", "{'context_parallel': 2}"),
    ),
    f"{MEGATRON}test_critic.py::test_values_loss_and_every_gradient_are_those_of_the_torch_trainer": (
        *("DP2", "PP2 interleaved", "TP2 PP2", "EP2", "TP2 SP CP2 recomputed"),
    ),
    f"{MEGATRON}test_steps.py::test_two_steps_end_where_one_process_does": ("TP2 SP", "PP2", "DP2", "EP2"),
    f"{MEGATRON}test_steps.py::test_a_reference_that_is_kept_says_what_one_that_is_switched_in_says": ("DP2",),
    f"{MEGATRON}test_scores.py::test_loss_and_every_gradient_of_scores_are_those_of_the_torch_trainer": (
        *("pairs-CP2", "label-PP2 interleaved", "score-EP2", "steps-TP2 SP CP2 recomputed"),
    ),
    f"{MEGATRON}test_parameters.py::test_frozen_weights_stay_and_the_others_learn_as_in_the_torch_trainer": (
        *("TP2", "PP2, a stage frozen", "PP2, a tied head slower", "Muon, PP2 DP2"),
    ),
    f"{MEGATRON}test_distillation.py::test_a_divergence_from_a_teacher_is_that_of_one_process": (
        *("forward-TP2 SP", "reverse-TP2 SP", "jsd-PP2", "jsd-TP2 SP CP2 recomputed"),
    ),
    f"{CLUSTER}test_trainer_access.py"
    "::test_another_process_computes_the_same_bits_and_what_it_has_learned_is_this_ones_trainer": (
        *("fsdp-encrypted", "torch-plain"),
    ),
    f"{CLUSTER}test_sessions.py::test_another_process_takes_its_place_where_it_is_killed_or_stopped": ("kill",),
    f"{CLUSTER}test_foreign_trainer.py"
    "::test_it_learns_on_a_cluster_as_in_one_process_and_with_ranks_of_its_own_the_driver_does": ("ROWS",),
    f"{CLUSTER}test_gateways.py::test_a_worker_that_stops_amid_a_session_is_ended_when_the_programs_time_is_over": (
        "driver",
    ),
    f"{CLUSTER}test_gateways.py::test_a_worker_that_opens_no_session_is_ended_at_the_deadline_of_a_call": (
        "environment worker",
    ),
    f"{SERVERS}every_engine_moves_at_once_and_each_token_knows_its_version": ("retract", "in_place"),
    f"{SERVERS}turns_end_whole_though_the_way_to_an_engine_fails": ("drop", "garble"),
    "tests/envs/check/test_check.py::test_nothing_is_found_in_unusual_environments_that_keep_the_contract": (
        *("SlowToBegin", "Pooled", "PayingAtTheEnd", "OnDisk", "Async", "Surviving", "Talking", "Running"),
    ),
    "tests/envs/check/test_planted.py::test_nothing_is_found_in_a_game_a_quiz_and_a_world_with_chance": (
        *("Parity", "Duel"),
    ),
}
"""Of a matrix's cases those that `make test` plays, by the beginning of their names: each layout, mode and kind is in
one of them, or in another test of the same file. The others are `make nightly`'s."""


def named_cases() -> list[str]:
    """The beginnings of the addresses of all cases that the tables name."""
    ours = [address for pair in NIGHTLY.items() for address in pair if "[" in address]
    return ours + [f"{function}[{case}" for function, cases in BY_DAY.items() for case in cases]


def is_nightly(test: str) -> bool:
    """Whether `make test` leaves out the test of an address."""
    function, _, case = test.partition("[")
    return test.startswith(tuple(NIGHTLY)) or (bool(case) and not case.startswith(BY_DAY.get(function, "")))


class Nightly:
    """Marks the tests of the tables, before `-m` is applied."""

    def __init__(self) -> None:
        self.tests: list[str] = []
        """The addresses of all that were collected."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.tests = [item.nodeid for item in items]
        for item in items:
            if is_nightly(item.nodeid):
                item.add_marker(pytest.mark.nightly)
