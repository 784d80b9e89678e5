"""What `make test` leaves to `make nightly`: the dear half of a promise whose other half it keeps.

A test stands here only with another one that the shorter run has and that would find the same fault in a cheaper form:
one server in place of two, two layers in place of thirty, one row of a covering design in place of all of them.
"""

from __future__ import annotations

import pytest

ENGINES, MEGATRON = "tests/rollout/engines/", "tests/train/backends/megatron/"
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
