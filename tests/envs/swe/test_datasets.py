"""Rows of four data sets, each in its published fields, as tasks; two of them scored on an image made like theirs."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.builtin.swe.formats.datasets import CONDA, LAYOUTS, layout_of, read_tasks, task_of
from agentrl.envs.builtin.swe.patch import as_patch
from agentrl.envs.builtin.swe.prebuilt import directives
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.episode import expert_policy, noop_policy, play
from agentrl.errors import ConfigError, InvalidInput, UnknownName
from agentrl.tools.sandbox.docker.daemon import daemon
from agentrl.types import Message, Session
from tests.conftest import need
from tests.envs.swe.conftest import BROKEN, FIXED, HIDDEN, VISIBLE, text_file

GOLD = as_patch({"slug.py": text_file(BROKEN)}, {"slug.py": text_file(FIXED)}).decode()
BUG = as_patch({"slug.py": text_file(FIXED)}, {"slug.py": text_file(BROKEN)}).decode()
MUST = ["tests/test_hidden.py::test_spaces", "tests/test_hidden.py::test_refuses"]
KEEP = ["tests/test_hidden.py::TestCount::test_empty"]
SWEBENCH: dict[str, Any] = {
    "repo": "django/django",
    "instance_id": "django__django-11099",
    "base_commit": "d26b2424437dabeeca94d7900b37d2df4410da0c",
    "patch": GOLD,
    "test_patch": as_patch({}, {"tests/auth_tests/test_validators.py": text_file("x = 1\n")}).decode(),
    "problem_statement": "Slugs are wrong.",
    "hints_text": "",
    "created_at": "2019-03-20T03:46:18Z",
    "version": "3.0",
    "FAIL_TO_PASS": json.dumps(["test_ascii (auth_tests.test_validators.Tests)"]),
    "PASS_TO_PASS": json.dumps(["test_unicode (auth_tests.test_validators.Tests)"]),
    "environment_setup_commit": "419a78300f7cd27611196e1e464d50fd0385ff27",
}
GYM = SWEBENCH | {
    "repo": "getmoto/moto",
    "instance_id": "getmoto__moto-5406",
    "FAIL_TO_PASS": MUST,
    "PASS_TO_PASS": KEEP,
}
SMITH = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "image_name": "swesmith.x86_64.oauthlib__oauthlib.1fd52536",
    "patch": BUG,
    "problem_statement": "Slugs are wrong.",
    "FAIL_TO_PASS": MUST,
    "PASS_TO_PASS": KEEP,
}
R2E = {
    "repo_name": "orange3",
    "docker_image": "namanjain12/orange3_final:2d9617bd0cb1f0ba61771258410ab8fae8e7e24d",
    "commit_hash": "2d9617bd0cb1f0ba61771258410ab8fae8e7e24d",
    "problem_statement": "[ISSUE]\nSlugs are wrong.\n[/ISSUE]",
    "parsed_commit_content": "{}",
    "expected_output_json": json.dumps({"test_spaces": "PASSED", "TestCount.test_empty": "PASSED", "test_x": "FAILED"}),
    "execution_result_content": json.dumps(
        {
            "test_file_names": ["test_1.py"],
            "test_file_codes": [HIDDEN],
            "old_commit_res_stdout": "= short test summary info =\nPASSED r2e_tests/test_1.py::TestCount::test_empty\n"
            "FAILED r2e_tests/test_1.py::test_spaces - assert 1",
        }
    ),
}
IMAGES = {
    "swebench": "swebench/sweb.eval.x86_64.django_1776_django-11099:latest",
    "swegym": "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5406:latest",
    "smith": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536:latest",
    "r2e": "namanjain12/orange3_final:2d9617bd0cb1f0ba61771258410ab8fae8e7e24d",
}
ROWS: dict[str, dict[str, Any]] = {"swebench": SWEBENCH, "swegym": GYM, "smith": SMITH, "r2e": R2E}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_is_known_by_its_fields_and_names_its_image(layout: str) -> None:
    task = task_of(ROWS[layout])
    assert layout_of(ROWS[layout]) == layout
    assert task == task_of(ROWS[layout], layout)
    assert task.image == IMAGES[layout]
    assert task.workdir == "/testbed"
    assert task.instruction == "Slugs are wrong."
    assert SweTask.of(task.as_task()) == task


def test_swebenchs_commands_formats_and_names_are_those_of_its_harness() -> None:
    task = task_of(SWEBENCH)
    assert task.test_command == f"{CONDA}./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
    assert directives(task) == ["auth_tests.test_validators"]
    assert (task.log_format, task.version, task.base_commit) == ("django", "3.0", SWEBENCH["base_commit"])
    assert task.fail_to_pass == ("test_ascii (auth_tests.test_validators.Tests)",)
    assert task_of(SWEBENCH | {"repo": "psf/requests"}).log_format == "pytest_options"
    assert task_of(SWEBENCH | {"log_parser": "parse_log_pytest_v2"}).log_format == "pytest_v2"
    assert task_of(SWEBENCH | {"image": "mine:1"}).image == "mine:1"
    assert task_of(SWEBENCH, image="local/{id}:x").image == "local/django_1776_django-11099:x"
    assert task_of(SWEBENCH, test_command="make test").test_command == "make test"


def test_r2es_tests_come_from_the_row_and_leave_the_image() -> None:
    task = task_of(R2E)
    assert task.tests == {"r2e_tests/test_1.py": HIDDEN}
    assert (task.fail_to_pass, task.pass_to_pass) == (("test_spaces",), ("TestCount.test_empty",))
    assert "/r2e_tests" in task.setup[0]


def test_files_of_both_kinds_hold_the_same_tasks(tmp_path: Path) -> None:
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    lines.write_text("\n".join(json.dumps(row) for row in (SWEBENCH, SWEBENCH | {"instance_id": "a__b-1"})) + "\n\n")
    found, note = read_tasks(lines)
    assert note.startswith(f"env.path = {str(lines)!r}: 2 tasks, read as swebench (2); columns that are not read: ")
    assert [task.id for task in found] == ["django__django-11099", "a__b-1"]
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(
        pyarrow.Table.from_pylist([json.loads(line) for line in lines.read_text().split("\n")[:2]]), table
    )
    assert read_tasks(table)[0] == found


def test_what_is_wrong_with_a_file_or_a_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_tasks(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{')
    with pytest.raises(InvalidInput, match="has no 'instance_id', which swebench's rows have"):
        read_tasks(tmp_path / "bad.jsonl")
    (tmp_path / "worse.jsonl").write_text("{")
    with pytest.raises(ConfigError, match="line 1: not a JSON object"):
        read_tasks(tmp_path / "worse.jsonl")
    with pytest.raises(UnknownName, match="did you mean 'swebench'"):
        task_of(SWEBENCH, "swe-bench")
    with pytest.raises(InvalidInput, match="has no 'FAIL_TO_PASS'"):
        task_of({key: value for key, value in SWEBENCH.items() if key != "FAIL_TO_PASS"})


# ------------------------------------------------------------------ on an image made as theirs are

IMAGE = "agentrl/test-datasets:latest"
ACTIVATE = 'conda() { export CONDA_DEFAULT_ENV="$2" PATH="/opt/miniconda3/envs/$2/bin:$PATH"; }\n'
RUNNER = '#!/bin/sh\n[ "$CONDA_DEFAULT_ENV" = testbed ] || exit 9\nexec python3 -m pytest "$@"\n'
DOCKERFILE = """
FROM agentrl/base:latest
USER root
COPY bin /opt/miniconda3/bin
COPY pytest /opt/miniconda3/envs/testbed/bin/pytest
COPY repo /testbed
RUN chmod +x /opt/miniconda3/envs/testbed/bin/pytest && cd /testbed && git init -q -b main \\
    && git config user.email a@b && git config user.name a && git add -A && git commit -q -m base && git tag v1
"""


@pytest.fixture(scope="module")
def images(docker: None) -> Iterator[str]:
    """Two images: conda's environment `testbed`, and at /testbed the broken repository, or (`smith`) the whole one."""
    need(True, "")
    api, made = daemon().api, []
    for tag, source in ((IMAGE, BROKEN), (f"{IMAGE}-smith", FIXED)):
        tests = {
            "repo/tests/test_visible.py": VISIBLE,
            **({"repo/tests/test_hidden.py": HIDDEN} if source == FIXED else {}),
        }
        files = {"Dockerfile": DOCKERFILE, "bin/activate": ACTIVATE, "pytest": RUNNER, "repo/slug.py": source, **tests}
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
        body.seek(0)
        for event in api.build(fileobj=body, custom_context=True, tag=tag, rm=True, decode=True):
            assert "error" not in event, event
        made.append(tag)
    yield IMAGE
    for tag in made:
        api.remove_image(tag, force=True, noprune=True)


def played(task: SweTask, *commands: str) -> Session:
    """An episode of the expert's, or one in which the agent runs these commands."""

    def policy(env: Swe, messages: list[Message]) -> Message:
        done = sum(message.role == "assistant" for message in messages)
        return env.call("bash", command=commands[done]) if done < len(commands) else env.call("submit")

    return asyncio.run(play(Swe(), task.as_task(), policy if commands else expert_policy))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_swebench_row_is_scored_in_its_conda_environment(images: str) -> None:
    hidden = as_patch({}, {"tests/test_hidden.py": text_file(HIDDEN)}).decode()
    fields = {"repo": "pallets/flask", "base_commit": "v1", "test_patch": hidden, "FAIL_TO_PASS": json.dumps(MUST)}
    task = task_of(SWEBENCH | fields | {"PASS_TO_PASS": json.dumps(KEEP)}, image=images)
    assert played(task).reward == 1.0
    assert played(task, "echo x > y").reward == 0.0
    assert asyncio.run(play(Swe(), task.as_task(), noop_policy)).reward == 0.0


@pytest.mark.slow
def test_a_smith_row_begins_with_its_bug_and_no_history_shows_it(images: str) -> None:
    task = task_of(SMITH, image=f"{images}-smith")
    assert played(task).reward == 1.0
    cheat = "echo 'def test_spaces(): pass\ndef test_refuses(): pass' > tests/test_hidden.py"
    session = played(task, "git log --all -p --format=%s; git stash list; git reflog | cat; git status --short", cheat)
    assert session.reward == 0.0, "the tests were put back"
    seen = session.messages[2].text
    assert "positive" in seen
    assert "ValueError(f" not in seen.split("tests/test_hidden.py")[0]
    assert "\n-" not in seen.replace("\n---", "")
