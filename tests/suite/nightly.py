"""What `make test` leaves to `make nightly`: the dear half of a promise whose other half it keeps.

A test stands here only with another one that the shorter run has and that would find the same fault in a cheaper form:
one server in place of two, two layers in place of thirty, some cases of a matrix in place of all of them.
"""

from __future__ import annotations

import pytest

from tests.suite.by_day import BY_DAY, CLUSTER, LEASES, MEGATRON

ENGINES = "tests/rollout/engines/"
VLLM = f"{ENGINES}test_vllm.py::test_"
SERVED_BY_VLLM = f"{VLLM}vllm_keeps_the_contract"
SCHEDULER = f"{ENGINES}test_scheduler.py::test_a_turn_is_its_own_whatever_happens_beside_it_in_hundreds_of_turns"
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
TWO_NODES = (
    f"{CLUSTER}test_ranks.py::test_ranks_on_two_nodes_learn_as_on_one_and_another_trainer_goes_on_where_one_is_killed"
)
ONE_RUN = (
    f"{CLUSTER}test_run.py"
    "::test_on_two_ray_nodes_it_samples_learns_and_ends_as_in_one_process_and_the_driver_reads_nothing_of_it"
)
GATEWAYS = f"{CLUSTER}test_gateway_runs.py::test_a_run_with_gateway_workers_learns_the_same_also_where_one_stops"
TWO_POLICIES = (
    "tests/train/test_several_learners.py"
    "::test_each_policy_learns_what_its_own_run_would_and_a_killed_run_goes_on_bit_for_bit"
)
REPLACED = (
    "tests/rollout/fleet/test_processes.py"
    "::test_a_server_that_is_killed_or_stopped_is_replaced_by_one_of_the_same_version"
)
PRINTED = "tests/test_commands.py::test_a_command_runs_as_printed"
VIEWED = "tests/viewer/test_scripts.py::test_no_text_is_more_than_text_"
UNREWARDED = (
    "tests/train/test_lost_tokens.py::test_a_run_without_rewards_ends_after_its_first_step_and_keeps_what_it_did"
)
SCORING = f"{ENGINES}test_sglang.py::test_sglang_keeps_the_contract[logprobs_are_those_of_scoring"
CLIENTS = "tests/sessions/gateway/test_clients.py::test_a_"
FRAMEWORK = f"{CLIENTS}framework_makes_one_clean_path_or_branches_of_the_stated_causes"
TOOLS = f"{CLIENTS}program_with_tools_makes_one_clean_path"
RANDOM = f"{CLIENTS}program_handles_a_model_of_random_tokens_and_its_turns_are_stored_as_sampled"
TRAINED = "tests/sessions/gateway/test_trained_clients.py::test_a_run_trains_each_client_for_a_step"
STOPS = (
    f"{CLUSTER}test_trainer_access.py"
    "::test_a_process_that_stops_while_another_calls_it_is_the_trainers_death_and_a_new_trainer_goes_on"
)
ONE_TASK = "tests/envs/swe/test_env.py::test_the_expert_solves_a_task_through_the_tools_and_saying_nothing_does_not"
BESIDE = "tests/envs/adapters/test_adapters.py::test_the_tests_of_adapters_pass_beside_their_libraries"
PUBLICATION = f"{LEASES}turns_go_through_a_publication_and_each_token_knows_its_policy[in_place-process"
TOOLS_KEPT = "tests/envs/test_function_calls.py::test_the_environment_keeps_its_contract"
RETAIL = "tests/envs/test_retail.py::test_it_keeps_the_contract_also_with_tau2_benchs_data"
LEARNS = (
    "tests/train/test_learning.py"
    "::test_the_calculator_agent_rises_from_below_half_to_eight_in_ten_on_tasks_it_never_saw"
)
SITES = "tests/envs/web/test_sites.py::test_it_keeps_the_contract"
NAMED_AGENTS = "tests/rollout/test_named_agents.py::test_"
UNCHANGED = "tests/train/test_verify_kinds.py::test_a_run_of_which_nothing_was_changed_passes"
ALSO_UNCHANGED = (
    *("asynchronous", "run again", "stopped and resumed", "given another trainer amid", "got its model replaced"),
    *("lost a checkpoint", "averaged weights", "resumed with other settings", "forks", "a mixture"),
)
CRITICS = "examples/several_agents/critics.yaml]"
ALSO_PRINTED = (
    *("env=grid_camera]", "env=shapes]", "env=kuhn_poker algo=ppo algo.value_view=1]"),
    *("-c examples/several_agents/relay.yaml]", "-c examples/several_agents/demand.yaml]"),
    "env=speaker_listener agents.listener=other",
)
DRAWN = (
    f"{ENGINES}test_sglang.py::test_narrowed_turns_and_those_under_a_grammar_bring_the_set_that_the_server_drew_from"
)
ROTATES = f"{MEGATRON}test_families.py::test_models_check_finds_a_family_that_rotates_otherwise"
SAMPLERS = "tests/test_supports_benchmark.py::test_"
DRAWS = f"{ENGINES}test_support.py::test_draws_from_a_recorded_set_follow_its_log_probabilities"
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
    PUBLISHED: ONE_RUN,
    f"{CLUSTER}test_run.py::test_policies_whose_trainers_have_ranks_learn_on_ray_nodes_as_here": ONE_RUN,
    f"{CLUSTER}test_run.py::test_two_policies_learn_on_ray_nodes_what_they_learn_in_one_process": ONE_RUN,
    f"{ENGINES}test_served_adapters.py": (
        "tests/train/lora/test_parts.py::test_turns_that_are_under_way_go_on_under_a_published_adapter"
    ),
    f"{ENGINES}test_sglang_experts.py::test_a_turn": (
        f"{ENGINES}test_experts.py::test_a_turns_experts_are_those_of_one_forward_pass_over_the_whole_path"
    ),
    f"{ENGINES}test_sglang_experts.py::test_a_mixture_keeps_the_contract_on_routed_experts": (
        f"{ENGINES}test_experts.py::test_a_mixture_keeps_the_contract_on_routed_experts"
    ),
    f"{ENGINES}test_sglang_experts.py::test_a_server_that_does_not_record_is_refused": (
        f"{ENGINES}test_sglang_experts.py::test_a_server_of_ours_on_a_cpu_is_refused_with_the_reason"
    ),
    f"{ENGINES}test_sglang.py::test_a_publication_to_sglang_with_a_stale_tensor": (
        "tests/rollout/fleet/test_reference.py"
        "::test_a_stale_tensor_that_the_probe_does_not_see_ends_a_run_on_the_local_engine"
    ),
    f"{ENGINES}test_process_engine.py::test_it_ends_with_a_process_that_is_killed": (
        f"{CLUSTER}test_server.py::test_nothing_outlives_an_owner_that_is_killed[9"
    ),
    "tests/rollout/fleet/test_servers.py": PUBLICATION,
    f"{SAMPLERS}sglangs_own_sampler_keeps_the_sets_of_the_rule_that_is_written_for_it": DRAWS,
    f"{SAMPLERS}vllms_own_sampler_keeps_the_sets_of_its_rule_and_draws_by_its_log_probabilities": DRAWS,
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
    f"{CLUSTER}test_sessions.py::test_what_it_does_for_the_driver_is_what_the_driver_does": (
        f"{CLUSTER}test_sessions.py::test_another_process_takes_its_place_where_it_is_killed_or_stopped[kill"
    ),
    f"{CLUSTER}test_ranks.py::test_tensor_parallel_ranks_are_on_one_node_and_learn_as_without_a_cluster": TWO_NODES,
    f"{CLUSTER}test_ranks.py::test_a_run_goes_on_from_its_last_checkpoint_where_a_rank_dies": TWO_NODES,
    f"{CLUSTER}test_rewards.py::test_environment_workers_on_ray_nodes_have_rewards_computed"
    "_on_the_nodes_that_the_settings_name": (
        f"{CLUSTER}test_rewards.py::test_a_run_with_reward_workers_learns_the_same_also_where_one_stops"
    ),
    f"{CLUSTER}test_gateway_runs.py::test_programs_of_environment_workers_reach_gateways"
    "_on_the_node_that_the_settings_name_by_https": GATEWAYS,
    f"{CLUSTER}test_programs.py::test_programs_on_another_node_reach_its_gateway_by_https"
    "_and_change_nothing_where_a_worker_stops": GATEWAYS,
    f"{CLUSTER}test_gateway_runs.py::test_a_recorded_run_of_a_program_is_run_again_by_gateway_workers": (
        f"{CLUSTER}test_programs.py::test_a_recorded_run_of_a_program_is_run_again_by_workers"
    ),
    f"{CLUSTER}test_gateways.py::test_a_worker_that_stops_amid_a_session_is_ended_when_the_programs_time_is_over": (
        f"{CLUSTER}test_gateways.py::test_a_worker_that_opens_no_session_is_ended_at_the_deadline_of_a_call"
        "[environment worker"
    ),
    f"{CLUSTER}test_foreign_trainer.py": "tests/train/test_foreign_plans.py::test_its_ranks_get_places_of_their_own",
    f"{CLUSTER}test_partition.py::test_requests_to_an_engine_that_no_packet_reaches_move": f"{REPLACED}[19",
    f"{CLUSTER}test_servers.py::test_where_the_driver_is_killed_the_server_on_another_node_ends": (
        f"{CLUSTER}test_workers.py::test_where_the_driver_is_killed_its_workers_and_what_they_started_end"
    ),
    f"{CLUSTER}test_contract.py::test_a_roles_process_collects_garbage_as_seldom_as_a_run[ray": (
        f"{CLUSTER}test_contract.py::test_a_roles_process_collects_garbage_as_seldom_as_a_run[local"
    ),
    "tests/train/backends/ranks/test_several_learners.py": TWO_POLICIES,
    "tests/test_faults.py::test_a_run_of_two_policies_that_dies_at_six_points_ends_the_same_bit_for_bit": TWO_POLICIES,
    "tests/train/test_several_learners.py::test_groups_begin_before_both_policies_have_learned": TWO_POLICIES,
    "tests/train/test_joint_tree.py::test_two_policies_learn_from_a_tree_and_a_killed_run_goes_on": TWO_POLICIES,
    "tests/rollout/test_named_agents.py::test_a_killed_run_of_a_program_with_several_policies": TWO_POLICIES,
    "tests/train/lora/test_tenants.py::test_policies_with_adapters_share_the_base": (
        "tests/train/lora/test_tenants.py"
        "::test_adapters_on_one_base_learn_the_bits_that_each_would_learn_alone_and_hold_it_once"
    ),
    f"{MEGATRON}test_families.py::test_the_gate_goes_through_the_function_that_the_model_names": ROTATES,
    "tests/envs/check/test_check.py::test_a_built_in_environment_has_no_findings": (
        "tests/envs/test_text_adventure.py::test_it_keeps_the_contract"
    ),
    f"{MEGATRON}test_adapters.py::test_ranks_train_save_and_export_an_adapter_as_one_process_does"
    "_also_after_a_warm_start": (
        "tests/train/lora/test_ranks.py::test_two_ranks_train_an_adapter_as_one_process_does_also_after_a_warm_start"
    ),
    "tests/train/backends/test_loaded.py::test_megatron_names_the_layer_that_it_loaded_wrong_whichever_rank_holds_it": (
        ROTATES
    ),
    f"{CLUSTER}test_run.py::test_a_trainer_goes_on_elsewhere_when_its_node_is_drained_and_learns_the_same": TWO_NODES,
    "tests/test_supports_benchmark.py::test_its_small_form_trains_with_calls_under_a_grammar"
    "_and_as_if_no_set_was_recorded": (
        "tests/train/test_grammar_run.py::test_a_run_under_a_json_schema_learns_within_it_and_is_run_again_bit_for_bit"
    ),
    "tests/test_chain_benchmark.py::test_its_small_form_gives_each_part_the_chains_tokens_and_finds_the_base_flat": (
        "tests/train/chain/test_chain.py::test_a_chain_is_its_runs_and_the_same_after_kills_anywhere"
    ),
    "tests/test_learning_benchmark.py::test_its_small_form_measures_a_policy_before_and_after_its_steps": LEARNS,
    "tests/train/lora/test_benchmark.py::test_an_adapters_run_begins_with_the_policy_of_the_whole_models"
    "_and_a_finished_one_is_read_again": (
        "tests/train/lora/test_benchmark.py"
        "::test_samples_are_counted_up_to_the_step_whose_reward_is_high_enough_in_the_mean_of_five"
    ),
    f"{COOKBOOK}supervised_loop_learns_and_a_killed_server_has_every_step": KILLED,
    f"{COOKBOOK}loop_of_rewards_learns_and_a_killed_server_has_every_step": KILLED,
    f"{CLUSTER}test_run.py::test_nodes_that_are_killed_under_a_run_change_nothing_of_what_it_learns": TWO_NODES,
    f"{STOPS}[plain-fsdp": f"{STOPS}[plain-torch",
    f"{MEGATRON}test_replay.py::test_a_run_records_publishes_and_replays": (
        f"{MEGATRON}test_run.py::test_a_run_imitates_reinforces_publishes_and_resumes_under_another_layout"
    ),
    f"{VLLM}narrowed_turns_bring_the_set_that_the_server_drew_from": SERVED_BY_VLLM,
    f"{VLLM}a_run_on_vllm_is_verified_by_vllms_own_checksums_and_a_swapped_token_in_it_is_found": SERVED_BY_VLLM,
    f"{VLLM}it_is_a_teacher_by_its_url": SERVED_BY_VLLM,
    "tests/sessions/gateway/test_load_benchmark.py": (
        "tests/sessions/gateway/test_load.py::test_two_hundred_sessions_stream_side_by_side_without_an_error"
    ),
    "tests/test_gpu_benchmark.py::test_every_part_that_needs_no_gpu_runs_on_a_cpu_in_a_small_form": (
        "tests/test_gpu_benchmark.py::test_a_part_that_fails_or_hangs_keeps_the_figures_it_had"
    ),
    "tests/test_teams_benchmark.py::test_the_teams_benchmark_measures_what_it_says_in_its_small_form": (
        "tests/test_teams_benchmark.py::test_two_policies_learn_with_critics_of_joint_paths"
    ),
    "tests/rollout/remote/test_evaluation_benchmark.py::test_a_suite_that_is_killed_and_given_again": (
        "tests/rollout/remote/test_remote.py::test_a_model_behind_either_protocol_plays_with_tools"
    ),
    "tests/docs/test_site.py::test_the_site_builds_with_warnings_as_errors_and_loads_nothing_from_elsewhere": (
        "tests/docs/test_decisions.py::test_every_link_of_a_page_leads_to_a_file_and_a_heading"
    ),
    "tests/launch/test_slurm.py::test_sigterm_reaches_the_run_which_saves_and_then_ray_ends": (
        f"{CLUSTER}test_joining.py::test_sigterm_still_reaches_a_process_that_has_joined_a_cluster"
    ),
    "tests/models/test_custom_code.py::test_an_engine_in_a_process_of_its_own_loads_allowed_code": (
        "tests/models/test_custom_code.py::test_workers_are_allowed_what_their_starter_is"
    ),
    f"{MEGATRON}test_images.py::test_a_run_is_resumed_bit_for_bit_with_its_tower": (
        f"{MEGATRON}test_images.py::test_log_probabilities_and_every_gradient_are_those_of_the_torch_trainer"
    ),
    "tests/train/test_branched_run.py": f"{RESUMED}[grpo",
    "tests/vision/test_run.py::test_a_run_that_sees_is_resumed_to_the_last_bit": f"{RESUMED}[grpo",
    "tests/train/lora/test_ranks.py::test_every_loss_has_the_gradient_of_one_process_on_ranks_with_an_adapter": (
        "tests/train/lora/test_ranks.py::test_two_ranks_train_an_adapter_as_one_process_does_also_after_a_warm_start"
    ),
    "tests/train/backends/fsdp/test_trainer.py::test_muon_moves_sharded_matrices_as_whole_ones": (
        f"{MEGATRON}test_parameters.py::test_frozen_weights_stay_and_the_others_learn_as_in_the_torch_trainer"
        "[Muon, PP2 DP2"
    ),
    "tests/envs/swe/test_builtin.py::test_the_expert_solves_every_task_through_the_tools": ONE_TASK,
    "tests/envs/swe/test_builtin.py::test_who_says_nothing_solves_none": ONE_TASK,
    "tests/test_extras.py::test_a_run_needs_no_package_that_the_extra_train_does_not_bring": (
        "tests/test_wheel.py::test_the_wheel_alone_installs_in_an_empty_environment_and_is_of_use"
    ),
    "tests/train/test_distill.py::test_a_students_divergence_from_its_teacher_falls": (
        "tests/train/test_distill.py::test_each_kind_of_divergence_falls_in_a_run"
    ),
    "tests/train/test_every_algorithm.py::test_a_few_of_the_matrix_raise_the_reward_in_six_steps": LEARNS,
    "tests/train/test_critic_learning.py::test_where_the_prompt_says_what_can_be_earned": (
        "tests/train/backends/test_critic.py::test_the_critic_learns_to_distinguish_good_sessions_from_bad_ones"
    ),
    "tests/train/offline/test_score_runs.py::test_a_policy_that_is_trained_against_a_learned_reward": LEARNS,
    f"{PRINTED}[agentrl check env=shapes": "tests/envs/test_gsm8k.py::test_it_passes_the_check",
    "tests/envs/test_document_search.py::test_it_keeps_the_contract": TOOLS_KEPT,
    "tests/envs/test_data_analysis.py::test_it_keeps_the_contract": TOOLS_KEPT,
    "tests/envs/test_math_tools.py::test_it_keeps_the_contract": TOOLS_KEPT,
    "tests/test_public.py::test_a_type_checker_knows_the_public_names_and_finds_a_wrong_one": (
        "tests/test_public.py::test_the_public_names_are_those_of_the_list"
    ),
    f"{BESIDE}[.venv-adapters-verifiers": f"{BESIDE}[.venv-adapters]",
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
    **{f"{UNCHANGED}[{kind}": f"{UNCHANGED}[caches kept" for kind in ALSO_UNCHANGED},
    **{f"{PRINTED}[agentrl train {words}": f"{PRINTED}[agentrl train -c {CRITICS}" for words in ALSO_PRINTED},
    f"{UNCHANGED}[resumed from a copy elsewhere": f"{UNCHANGED}[copied",
    f"{UNCHANGED}[killed as it resumed and resumed": f"{UNCHANGED}[killed before a row and resumed",
    f"{UNREWARDED}[1": f"{UNREWARDED}[0",
    f"{DYING}[False": f"{DYING}[True",
    f"{FLEET}[inproc": f"{FLEET}[disk",
    "tests/train/test_several_fleets.py::test_two_policies_learn_on_sglang_and_go_on_after_a_kill": (
        "tests/train/test_several_fleets.py::test_each_policy_learns_on_servers_of_its_own_that_get_its_weights_alone"
    ),
    f"{VIEWED}on_any_page_of_the_viewer[with the": f"{VIEWED}on_any_page_of_the_viewer[without the",
    f"{VIEWED}in_a_report[with the": f"{VIEWED}in_a_report[without the",
    f"{PRINTED}[agentrl check env=oracle.py:Oracle]": (
        "tests/test_readme.py"
        "::test_the_readmes_environment_has_15_lines_keeps_the_contract_and_is_trained_from_a_script_as_it_says"
    ),
    f"{PRINTED}[agentrl train env=swe model=\\u2026 engine=sglang fleet.engines=4": (
        f"{PRINTED}[agentrl train env=swe model=\\u2026 engine=sglang 'fleet.urls"
    ),
    f"{PRINTED}[agentrl check env=retail hostile=1000": RETAIL,
    f"{PRINTED}[agentrl train env=gsm8k env.path=problems.jsonl model=smollm2-135m engine=sglang": (
        f"{PRINTED}[agentrl train env=swe model=\\u2026 engine=sglang 'fleet.urls"
    ),
    f"{PRINTED}[agentrl train -c examples/chains/best_of_practice.yaml]": (
        "tests/train/chain/test_best_of.py"
        "::test_the_best_sessions_are_what_the_next_stage_imitates_and_a_kill_changes_nothing"
    ),
}
"""The beginning of an address (of a file, a test or a case), and of the address of the test that stands in for it.

Faults planted in environments mark themselves: `make test` has the first of each rule.
"""


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
