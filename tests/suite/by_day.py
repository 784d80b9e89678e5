"""Of matrices, the cases that `make test` plays; the others are left to `make nightly`."""

from __future__ import annotations

MEGATRON, CLUSTER = "tests/train/backends/megatron/", "tests/cluster/"
LEASES = "tests/rollout/test_leases.py::test_"
UPDATES = (
    f"{MEGATRON}test_sequences.py::test_two_updates_with_pairs_or_verdicts_over_ranks_are_those_of_the_torch_trainer"
)
BY_DAY: dict[str, tuple[str, ...]] = {
    "tests/rollout/engines/test_vllm.py::test_vllm_keeps_the_contract": (
        *("logprobs_are_those_of_scoring", "publications_are_whole"),
    ),
    f"{MEGATRON}test_checkpoint.py::test_what_was_saved_under_one_layout_resumes_under_another": (
        *("with its critic", "written beside training"),
    ),
    f"{MEGATRON}test_adapters.py::test_an_adapters_loss_gradients_and_merged_weights_are_those_of_the_torch_trainer": (
        *("qwen3-TP2 SP CP2 recomputed", "glm4_moe-TP2 SP EP2 DP2"),
    ),
    UPDATES: (*("{'ranks': 2}-dpo", "{'tensor_parallel': 2}-orpo"),),
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
    "::test_another_process_computes_the_same_bits_and_what_it_has_learned_is_this_ones_trainer": (*("torch-plain",),),
    f"{CLUSTER}test_sessions.py::test_another_process_takes_its_place_where_it_is_killed_or_stopped": ("kill",),
    f"{CLUSTER}test_foreign_trainer.py"
    "::test_it_learns_on_a_cluster_as_in_one_process_and_with_ranks_of_its_own_the_driver_does": ("ROWS",),
    f"{CLUSTER}test_gateways.py::test_trees_rewards_and_ends_are_those_of_a_gateway_beside_the_program": (
        "driver-function",
    ),
    f"{CLUSTER}test_gateways.py"
    "::test_a_workers_death_ends_its_programs_at_once_as_infrastructure_errors_and_it_is_replaced": (
        "environment worker-function",
    ),
    f"{CLUSTER}test_trainer_access.py::test_a_call_of_another_process_that_takes_too_long_is_the_trainers_timeout": (
        "plain-torch",
    ),
    f"{CLUSTER}test_trainer_access.py::test_what_a_trainers_code_raises_ends_the_trainer_with_its_traceback": (
        "plain-torch",
    ),
    f"{CLUSTER}test_gateways.py::test_a_worker_that_opens_no_session_is_ended_at_the_deadline_of_a_call": (
        "environment worker",
    ),
    f"{LEASES}turns_of_a_session_find_their_prefix_and_what_comes_is_streamed": ("process",),
    f"{LEASES}a_caller_that_leaves_or_dies_ends_its_requests": ("process",),
    f"{LEASES}where_an_engine_dies_or_hangs_its_turns_go_on_by_another_with_their_tokens": ("9-process", "19-server"),
    f"{LEASES}turns_go_through_a_publication_and_each_token_knows_its_policy": ("in_place-process", "retract-server"),
    f"{LEASES}sessions_between_two_turns_are_of_the_new_version_after_a_publication": (
        *("drain-server", "abort-process"),
    ),
    f"{LEASES}sessions_of_many_turns_go_through_one_publication_after_another": ("drain-process", "in_place-server"),
    f"{LEASES}while_a_colocated_engine_sleeps_the_others_take_its_requests": ("abort",),
    f"{LEASES}sessions_between_two_turns_hold_up_neither_sleep_nor_removal": ("drain",),
    "tests/redteam/test_docker_killed.py::test_sessions_are_generated_again_and_no_place_is_lost_where_docker_dies": (
        *("the daemon with all", "the shim of a container", "every container"),
    ),
    "tests/envs/test_teams.py::test_the_worlds_keep_the_contract": ("hide_and_seek", "planner_worker"),
    "tests/envs/test_critics.py::test_worlds_with_critics_keep_the_contract": ("allocation",),
    "tests/envs/test_games.py::test_games_keep_the_contract": ("kuhn_poker",),
    "tests/envs/check/test_check.py::test_nothing_is_found_in_unusual_environments_that_keep_the_contract": (
        *("Pooled", "PayingAtTheEnd", "OnDisk", "Surviving", "Talking", "Running"),
    ),
    "tests/envs/check/test_planted.py::test_nothing_is_found_in_a_game_a_quiz_and_a_world_with_chance": (
        *("Parity", "Duel"),
    ),
}
"""Of a matrix's cases those that `make test` plays, by the beginning of their names: each layout, mode and kind is in
one of them, or in another test of the same file. The others are `make nightly`'s."""
