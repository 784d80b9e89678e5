"""Every list of attacks there is: what it is run against, and by which tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests import test_patterns
from tests.envs.code import test_judging
from tests.envs.swe import test_cheats
from tests.redteam import answers, cheats, daemons, files, leftovers, pages, policies, requests, test_tool_breaking
from tests.redteam.archives import ARCHIVES
from tests.redteam.attack import Attack, Kind, Target, attacks
from tests.redteam.escapes import ESCAPES
from tests.redteam.hoards import HOARDS
from tests.redteam.kernel import KERNEL
from tests.redteam.poisonings import BACKGROUND, POISONINGS
from tests.sessions.renderers import bombs, test_bounded_template, test_growth
from tests.test_untrusted import HOSTILE
from tests.tools.sandbox import test_places
from tests.train import test_restricted_checkpoints, test_secrets_planted, test_untrusted_records

PAID = "it is worth something"
SLOW = "a reader takes more than a time that grows with the text"
ENDS = [f"{means} in {state}" for means in test_places.MEANS for state in test_places.STATES]
FUNCTIONS = {**test_judging.CHEATS, **{name: code for name, (code, _) in test_judging.UNDER_COVER.items()}}


def named(must_not: str, names: Iterable[str]) -> list[Attack]:
    """What is data in other ways than as a text, by name."""
    return [Attack(name, name, must_not) for name in names]


def targets(kind: Kind, rows: Mapping[str, tuple[Any, ...]]) -> dict[str, Target]:
    """Lists of one kind, each with the file below `tests/` and the tests there that run it."""
    return {
        against: Target(kind, attacks, tuple(f"tests/{file}.py::{test}" for test in tests))
        for against, (attacks, file, *tests) in rows.items()
    }


CATALOGUE: dict[str, Target] = {
    **targets(
        Kind.PROVIDER,
        {
            "the kernel's borders": (KERNEL, "redteam/test_kernel", "test_refused"),
            "the end of a command": (ESCAPES, "redteam/test_escapes", "test_a_timeout_ends"),
            "archives on the way out": (
                ARCHIVES,
                "redteam/test_archives",
                "test_refused",
                "test_no_tree_of_an_agents_holds_what_is_outside",
            ),
            "the next session in a sandbox": (
                [*POISONINGS, *BACKGROUND],
                "redteam/test_poisonings",
                "test_a_reset_removes_what_an_attack_left",
                "test_a_reset_removes_what_a_running_attack_left",
            ),
            "the sandboxes beside it": (
                HOARDS,
                "redteam/test_hoards",
                "test_a_session_that_uses_every_resource_takes_none_from_another",
            ),
            "the pool's places": (
                named("a place is never free again", ENDS),
                "tools/sandbox/test_places",
                "test_a_place_is_free_after_its_sandbox_ended_in_any_state_by_any_means",
            ),
            "Docker itself": (
                named("a session has no score, or a place is never free again", daemons.DEATHS),
                "redteam/test_docker_killed",
                "test_sessions_are_generated_again_and_no_place_is_lost_where_docker_dies",
            ),
            "the end of a command without a container": (
                ESCAPES,
                "redteam/test_escapes",
                "test_a_timeout_ends_without_a_container",
            ),
            "the folders of a sandbox without a container": (
                [*leftovers.LEFTOVERS, *leftovers.REPLACED],
                "redteam/test_leftovers",
                "test_nothing_outside_is_emptied_or_seen_again",
                "test_nothing_outside_is_copied",
            ),
        },
    ),
    **targets(
        Kind.SCORER,
        {
            "whoever scores it": (
                cheats.CHEATS,
                "redteam/test_cheats",
                "test_a_repository_is_not_worth_more_for",
                "test_a_function_is_not_worth_more_for",
            ),
            "how tests ask it": (
                cheats.ANSWERS,
                "redteam/test_cheats",
                "test_no_answer_decides_how_its_question_is_written",
                "test_no_repository_is_worth_more_whose_function_answers_so",
            ),
            "the scorer of repositories": (
                [Attack(name, repr(content), PAID) for name, content in test_cheats.CHEATS.items()],
                "envs/swe/test_cheats",
                "test_a_cheating_patch_is_worth_nothing",
            ),
            "the scorer of functions": (
                [Attack(name, code, PAID) for name, code in FUNCTIONS.items()],
                "envs/code/test_judging",
                "test_cheating_code_scores_zero",
                "test_what_a_test_catches_or_defines_is_not_up_to_the_solution",
            ),
            "every task at once": (
                answers.EVERYTHING,
                "redteam/test_answers",
                "test_no_answer_is_right_for_two_tasks_whose_answers_differ",
            ),
            "the comparison of calls": (
                answers.CALLS,
                "redteam/test_answers",
                "test_no_call_is_right_for_two_tasks_whose_arguments_differ",
            ),
            "the time of scoring": (
                answers.ENDLESS,
                "redteam/test_answers",
                "test_a_scorer_takes_time_in_proportion_to_the_answer",
            ),
            "the retail world": (policies.RETAIL, "redteam/test_policies", "test_no_customer_is_served_by"),
            "the sites of web tasks": (policies.WEB, "redteam/test_policies", "test_no_site_is_worked_by"),
            "terminal tasks": (
                policies.TERMINAL,
                "redteam/test_policies",
                "test_no_task_for_a_shell_is_solved_or_broken_by",
            ),
            "checked instructions": (
                policies.INSTRUCTIONS,
                "redteam/test_policies",
                "test_no_instruction_is_followed_by",
            ),
            "offers of a game": (
                policies.OFFERS,
                "redteam/test_policies",
                "test_no_division_holds_that_the_partner_did_not_read",
            ),
            "patterns in data": (
                named(
                    "a search goes on beyond its time, or the answer that made it slow is right",
                    [pattern for pattern, _ in test_patterns.SLOW],
                ),
                "test_patterns",
                "test_a_search_without_end_is_ended",
                "test_no_answer_matches_or_fails_to_match_by_making_its_pattern_slow",
            ),
        },
    ),
    **targets(
        Kind.PARSER,
        {
            "the readers of tool calls": (
                attacks(SLOW, bombs.REPEATED),
                "sessions/renderers/test_growth",
                "test_a_reader_of_calls_takes_time_in_proportion_to_their_text",
            ),
            "the readers of requests": (
                named(SLOW, test_growth.HISTORIES),
                "sessions/renderers/test_growth",
                "test_a_request_is_read_in_time_in_proportion_to_its_length",
            ),
            "chat templates": (
                [
                    Attack(source[-95:], source, "a template takes all time or memory")
                    for source in test_bounded_template.ENDLESS
                ],
                "sessions/renderers/test_bounded_template",
                "test_what_would_take_too_long_or_too_much_is_refused",
            ),
            "what a session holds": (
                named("a session ends, or is not stored, because of what it holds", HOSTILE),
                "test_untrusted",
                "test_a_session_survives_and_is_stored_whatever_comes_in",
            ),
        },
    ),
    **targets(
        Kind.LOADER,
        {
            "data": (files.ROWS, "redteam/test_files", "test_no_data_ends_a_command_otherwise_than_by_its_name"),
            "data that unpacks": (files.BOMBS, "redteam/test_files", "test_no_data_is_unpacked_beyond_its_bounds"),
            "settings": (files.SETTINGS, "redteam/test_files", "test_no_settings_run_or_multiply"),
            "models": (files.MODELS, "redteam/test_files", "test_no_model_is_taken_that_is_none"),
            "tasks, corpora and indexes": (
                files.FOLDERS,
                "redteam/test_files",
                "test_no_task_corpus_or_index_is_taken_that_is_none",
            ),
            "checkpoints": (files.PICKLES, "redteam/test_files", "test_no_checkpoint_calls_what_it_names"),
            "places in checkpoints": (
                named(
                    "a file elsewhere is read, or the checkpoint is taken",
                    (f"{field}={value}" for field, value, _ in test_restricted_checkpoints.ELSEWHERE),
                ),
                "train/test_restricted_checkpoints",
                "test_a_tensor_that_lies_elsewhere_is_refused_by_name",
            ),
            "records of runs": (
                named("code that a record names is run", test_untrusted_records.SECTIONS),
                "train/test_untrusted_records",
                "test_plugins_of_a_record_are_known_by_name_without_being_imported",
                "test_commands_that_read_a_record_do_not_import_what_it_names",
            ),
        },
    ),
    **targets(
        Kind.SERVER,
        {
            "a server's name": (requests.HOSTS, "redteam/test_requests", "test_no_other_name_is_answered"),
            "pages of other sites": (
                requests.ORIGINS,
                "redteam/test_requests",
                "test_no_page_of_another_site_is_answered",
            ),
            "the viewer's pages and reports": (
                pages.SCRIPTS,
                "viewer/test_scripts",
                "test_no_text_is_more_than_text_on_any_page_of_the_viewer",
                "test_no_text_is_more_than_text_in_a_report",
            ),
            "the retrieval server": (requests.SEARCHES, "redteam/test_requests", "test_no_wrong_search_is_made"),
            "the gateway": (requests.TURNS, "redteam/test_requests", "test_no_body_is_more_than_a_clients_mistake"),
        },
    ),
    **targets(
        Kind.RUN,
        {
            "secrets": (
                attacks("a file, log, page or message of a run has the secret", test_secrets_planted.PLACES),
                "train/test_secrets_planted",
                "test_no_folder_of_a_run_holds_one_and_a_resumption_asks_for_each",
                "test_a_run_that_fails_in_every_part_says_none",
            ),
            "lost games": (
                named("a game that is lost has no score", test_tool_breaking.ERRORS),
                "redteam/test_tool_breaking",
                "test_no_mean_rises_by_breaking_tools_in_lost_games",
            ),
        },
    ),
}
