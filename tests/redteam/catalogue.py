"""Every list of attacks there is: what it is run against, and by which tests."""

from __future__ import annotations

from collections.abc import Iterable

from tests.envs.code import test_judging
from tests.envs.swe import test_cheats
from tests.redteam import answers, cheats, daemons, files, pages, policies, requests, test_tool_breaking
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


def by(file: str, *tests: str) -> tuple[str, ...]:
    """Tests of a file below `tests/`."""
    return tuple(f"tests/{file}.py::{test}" for test in tests)


CATALOGUE: dict[str, Target] = {
    "the kernel's borders": Target(Kind.PROVIDER, KERNEL, by("redteam/test_kernel", "test_refused")),
    "the end of a command": Target(
        Kind.PROVIDER,
        ESCAPES,
        by("redteam/test_escapes", "test_a_timeout_ends", "test_a_timeout_ends_without_a_container"),
    ),
    "archives on the way out": Target(
        Kind.PROVIDER,
        ARCHIVES,
        by("redteam/test_archives", "test_refused", "test_no_tree_of_an_agents_holds_what_is_outside"),
    ),
    "the next session in a sandbox": Target(
        Kind.PROVIDER,
        [*POISONINGS, *BACKGROUND],
        by(
            "redteam/test_poisonings",
            "test_a_reset_removes_what_an_attack_left",
            "test_a_reset_removes_what_a_running_attack_left",
        ),
    ),
    "the sandboxes beside it": Target(
        Kind.PROVIDER,
        HOARDS,
        by("redteam/test_hoards", "test_a_session_that_uses_every_resource_takes_none_from_another"),
    ),
    "the pool's places": Target(
        Kind.PROVIDER,
        named("a place is never free again", ENDS),
        by("tools/sandbox/test_places", "test_a_place_is_free_after_its_sandbox_ended_in_any_state_by_any_means"),
    ),
    "Docker itself": Target(
        Kind.PROVIDER,
        named("a session has no score, or a place is never free again", daemons.DEATHS),
        by(
            "redteam/test_docker_killed",
            "test_sessions_are_generated_again_and_no_place_is_lost_where_docker_dies",
        ),
    ),
    "whoever scores it": Target(
        Kind.SCORER,
        cheats.CHEATS,
        by(
            "redteam/test_cheats",
            "test_a_repository_is_not_worth_more_for",
            "test_a_function_is_not_worth_more_for",
        ),
    ),
    "how tests ask it": Target(
        Kind.SCORER,
        cheats.ANSWERS,
        by(
            "redteam/test_cheats",
            "test_no_answer_decides_how_its_question_is_written",
            "test_no_repository_is_worth_more_whose_function_answers_so",
        ),
    ),
    "the scorer of repositories": Target(
        Kind.SCORER,
        [Attack(name, repr(content), PAID) for name, content in test_cheats.CHEATS.items()],
        by("envs/swe/test_cheats", "test_a_cheating_patch_is_worth_nothing"),
    ),
    "the scorer of functions": Target(
        Kind.SCORER,
        [Attack(name, code, PAID) for name, code in FUNCTIONS.items()],
        by(
            "envs/code/test_judging",
            "test_cheating_code_scores_zero",
            "test_what_a_test_catches_or_defines_is_not_up_to_the_solution",
        ),
    ),
    "every task at once": Target(
        Kind.SCORER,
        answers.EVERYTHING,
        by("redteam/test_answers", "test_no_answer_is_right_for_two_tasks_whose_answers_differ"),
    ),
    "the comparison of calls": Target(
        Kind.SCORER,
        answers.CALLS,
        by("redteam/test_answers", "test_no_call_is_right_for_two_tasks_whose_arguments_differ"),
    ),
    "the time of scoring": Target(
        Kind.SCORER,
        answers.ENDLESS,
        by("redteam/test_answers", "test_a_scorer_takes_time_in_proportion_to_the_answer"),
    ),
    "the retail world": Target(
        Kind.SCORER, policies.RETAIL, by("redteam/test_policies", "test_no_customer_is_served_by")
    ),
    "the sites of web tasks": Target(
        Kind.SCORER, policies.WEB, by("redteam/test_policies", "test_no_site_is_worked_by")
    ),
    "terminal tasks": Target(
        Kind.SCORER, policies.TERMINAL, by("redteam/test_policies", "test_no_task_for_a_shell_is_solved_or_broken_by")
    ),
    "checked instructions": Target(
        Kind.SCORER, policies.INSTRUCTIONS, by("redteam/test_policies", "test_no_instruction_is_followed_by")
    ),
    "offers of a game": Target(
        Kind.SCORER,
        policies.OFFERS,
        by("redteam/test_policies", "test_no_division_holds_that_the_partner_did_not_read"),
    ),
    "the readers of tool calls": Target(
        Kind.PARSER,
        attacks(SLOW, bombs.REPEATED),
        by("sessions/renderers/test_growth", "test_a_reader_of_calls_takes_time_in_proportion_to_their_text"),
    ),
    "the readers of requests": Target(
        Kind.PARSER,
        named(SLOW, test_growth.HISTORIES),
        by("sessions/renderers/test_growth", "test_a_request_is_read_in_time_in_proportion_to_its_length"),
    ),
    "chat templates": Target(
        Kind.PARSER,
        attacks("a template takes all time or memory", test_bounded_template.ENDLESS),
        by("sessions/renderers/test_bounded_template", "test_what_would_take_too_long_or_too_much_is_refused"),
    ),
    "what a session holds": Target(
        Kind.PARSER,
        named("a session ends, or is not stored, because of what it holds", HOSTILE),
        by("test_untrusted", "test_a_session_survives_and_is_stored_whatever_comes_in"),
    ),
    "data": Target(
        Kind.LOADER, files.ROWS, by("redteam/test_files", "test_no_data_ends_a_command_otherwise_than_by_its_name")
    ),
    "data that unpacks": Target(
        Kind.LOADER, files.BOMBS, by("redteam/test_files", "test_no_data_is_unpacked_beyond_its_bounds")
    ),
    "settings": Target(Kind.LOADER, files.SETTINGS, by("redteam/test_files", "test_no_settings_run_or_multiply")),
    "models": Target(Kind.LOADER, files.MODELS, by("redteam/test_files", "test_no_model_is_taken_that_is_none")),
    "tasks, corpora and indexes": Target(
        Kind.LOADER, files.FOLDERS, by("redteam/test_files", "test_no_task_corpus_or_index_is_taken_that_is_none")
    ),
    "checkpoints": Target(
        Kind.LOADER, files.PICKLES, by("redteam/test_files", "test_no_checkpoint_calls_what_it_names")
    ),
    "places in checkpoints": Target(
        Kind.LOADER,
        named(
            "a file elsewhere is read, or the checkpoint is taken",
            (f"{field}={value}" for field, value, _ in test_restricted_checkpoints.ELSEWHERE),
        ),
        by("train/test_restricted_checkpoints", "test_a_tensor_that_lies_elsewhere_is_refused_by_name"),
    ),
    "records of runs": Target(
        Kind.LOADER,
        named("code that a record names is run", test_untrusted_records.SECTIONS),
        by(
            "train/test_untrusted_records",
            "test_plugins_of_a_record_are_known_by_name_without_being_imported",
            "test_commands_that_read_a_record_do_not_import_what_it_names",
        ),
    ),
    "a server's name": Target(
        Kind.SERVER, requests.HOSTS, by("redteam/test_requests", "test_no_other_name_is_answered")
    ),
    "pages of other sites": Target(
        Kind.SERVER, requests.ORIGINS, by("redteam/test_requests", "test_no_page_of_another_site_is_answered")
    ),
    "the viewer's pages and reports": Target(
        Kind.SERVER,
        pages.SCRIPTS,
        by(
            "viewer/test_scripts",
            "test_no_text_is_more_than_text_on_any_page_of_the_viewer",
            "test_no_text_is_more_than_text_in_a_report",
        ),
    ),
    "the retrieval server": Target(
        Kind.SERVER, requests.SEARCHES, by("redteam/test_requests", "test_no_wrong_search_is_made")
    ),
    "the gateway": Target(
        Kind.SERVER, requests.TURNS, by("redteam/test_requests", "test_no_body_is_more_than_a_clients_mistake")
    ),
    "secrets": Target(
        Kind.RUN,
        attacks("a file, log, page or message of a run has the secret", test_secrets_planted.PLACES),
        by(
            "train/test_secrets_planted",
            "test_no_folder_of_a_run_holds_one_and_a_resumption_asks_for_each",
            "test_a_run_that_fails_in_every_part_says_none",
        ),
    ),
    "lost games": Target(
        Kind.RUN,
        named("a game that is lost has no score", test_tool_breaking.ERRORS),
        by("redteam/test_tool_breaking", "test_no_mean_rises_by_breaking_tools_in_lost_games"),
    ),
}
