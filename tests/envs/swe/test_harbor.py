"""The directory format: what is written is read back the same, and what is wrong is named."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.building import context_of
from agentrl.envs.builtin.swe.formats import harbor, unread
from agentrl.envs.builtin.swe.formats.toml import dumps
from agentrl.envs.builtin.swe.prebuilt import variables
from agentrl.envs.builtin.swe.repository import commit_id, fast_import, setup
from agentrl.envs.builtin.swe.task import Commit, SweTask
from agentrl.envs.data import identity
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, InvalidInput, UnknownName
from agentrl.types import Task

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
PATH = st.builds("/".join, st.lists(st.from_regex(r"[a-z]{1,3}", fullmatch=True), min_size=1, max_size=2)).map(
    "{}.x".format
)
MESSAGE = TEXT.filter(lambda text: text.strip("\n") != "")


@st.composite
def histories(draw: st.DrawFn) -> tuple[Commit, ...]:
    """Histories whose every commit changes something, and whose folders are never files."""
    commits: list[Commit] = []
    tree: dict[str, str] = {}
    for number in range(draw(st.integers(1, 4))):
        files: dict[str, str | None] = dict(draw(st.dictionaries(PATH, TEXT, min_size=1, max_size=4)))
        if gone := draw(st.sets(st.sampled_from(sorted(tree)))) if tree else set():
            files |= dict.fromkeys(gone)
        for path, text in files.items():
            tree.pop(path, None)
            if text is not None:
                tree[path] = text
        commits.append(Commit(message=draw(MESSAGE), files=files, time=1_700_000_000 + number))
    return tuple(commits)


@st.composite
def tasks(draw: st.DrawFn) -> SweTask:
    names = draw(st.lists(MESSAGE, min_size=1, max_size=6, unique=True))
    cut = draw(st.integers(1, len(names)))
    return SweTask(
        id="some-task",
        instruction=draw(MESSAGE),
        commits=draw(histories()),
        difficulty=draw(st.sampled_from(["easy", "medium", "hard"])),
        tags=tuple(draw(st.lists(TEXT, max_size=3))),
        tests=draw(st.dictionaries(PATH, TEXT, max_size=3)),
        fail_to_pass=tuple(names[:cut]),
        pass_to_pass=tuple(names[cut:]),
        env=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
        setup=tuple(draw(st.lists(TEXT, max_size=2))),
        timeout=draw(st.floats(0.5, 1e6)),
        solution=draw(TEXT),
        test_patch=draw(TEXT),
    )


def small(**changes: Any) -> SweTask:
    fields = {"id": "t", "instruction": "Mend it.", "commits": [{"message": "m", "files": {"a.py": "x = 1\n"}}]}
    return SweTask.build({**fields, "fail_to_pass": ["test_a.py::test"], **changes})


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(task=tasks())
@pytest.mark.slow
def test_what_is_written_is_read_back_the_same(task: SweTask, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tasks") / task.id
    harbor.write(task, folder)
    assert harbor.read(folder) == task
    assert harbor.read_all(folder.parent) == [task]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(task=tasks())
def test_a_task_survives_being_a_dataset_row(task: SweTask) -> None:
    row = Task.model_validate_json(task.as_task().model_dump_json())
    assert SweTask.of(row) == task


@settings(deadline=None, max_examples=25)
@given(commits=histories())
@pytest.mark.slow
def test_git_gives_a_history_the_name_that_we_compute(
    commits: tuple[Commit, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    repo = tmp_path_factory.mktemp("git") / "it's here"
    subprocess.run(["bash", "-c", setup(str(repo))], input=fast_import(commits), check=True)
    git = ["git", "-C", str(repo), "-c", "core.quotepath=off"]
    assert subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip() == commit_id(commits)
    assert subprocess.check_output([*git, "status", "--short"]) == b""
    tree = small(commits=commits).files
    found = {path.relative_to(repo).as_posix() for path in repo.rglob("*") if path.is_file()}
    assert {path for path in found if not path.startswith(".git/")} == set(tree)
    assert all((repo / path).read_bytes().decode() == text for path, text in tree.items())


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    table=st.recursive(
        st.dictionaries(TEXT, TEXT | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.lists(TEXT), max_size=4),
        lambda inner: st.dictionaries(TEXT, inner | st.lists(inner, min_size=1, max_size=3), max_size=3),
        max_leaves=6,
    )
)
def test_the_standard_library_reads_the_toml_that_we_write(table: dict[str, Any]) -> None:
    assert tomllib.loads(dumps(table)) == table


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tests": {"../x.py": ""}}, ["tests", "'../x.py'", "inside the repository"]),
        ({"visible_tests": ["/etc/passwd"]}, ["visible_tests", "'/etc/passwd'", "inside the repository"]),
        ({"visible_tests": ["test_b.py"]}, ["visible_tests", "'test_b.py'"]),
        ({"difficulty": "mild"}, ["difficulty", "'mild'", "'easy', 'medium' or 'hard'"]),
        ({"timeout": 0}, ["timeout", "greater than 0"]),
        ({"fail_to_pass": []}, ["fail_to_pass", "at least one test"]),
        ({"pass_to_pass": ["test_a.py::test"]}, ["'test_a.py::test'", "in one of them"]),
        ({"commits": []}, ["commits", "image"]),
        ({"base_commit": "abc"}, ["base_commit", "'abc'", "''"]),
        ({"colour": "red"}, ["colour", "'red'"]),
        ({"id": "../up"}, ["id", "'../up'"]),
        ({"commits": [{"message": "m", "files": {".git/config": ""}}]}, [".git/config", "not in .git"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(changes: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        small(**changes)
    for words in said:
        assert words in str(caught.value)


def test_a_directory_that_is_wrong_says_where(tmp_path: Path) -> None:
    harbor.write(small(), tmp_path / "t")
    with pytest.raises(InvalidInput, match="not empty"):
        harbor.write(small(), tmp_path / "t")
    (tmp_path / "t/environment/repo/stray.py").write_text("")
    with pytest.raises(InvalidInput, match=r"no commit adds environment/repo/stray\.py"):
        harbor.read(tmp_path / "t")
    (tmp_path / "t/environment/repo/stray.py").write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match=r"stray\.py is no UTF-8 text"):
        harbor.read(tmp_path / "t")
    (tmp_path / "t/task.toml").write_text("metadata = 3")
    with pytest.raises(InvalidInput, match="metadata is 3: allowed: a table"):
        harbor.read(tmp_path / "t")
    (tmp_path / "t/task.toml").write_text("a = [")
    with pytest.raises(InvalidInput, match=r"task\.toml: Invalid value"):
        harbor.read(tmp_path / "t")
    with pytest.raises(InvalidInput, match=r"absent/task\.toml: No such file"):
        harbor.read(tmp_path / "absent")
    with pytest.raises(InvalidInput, match="holds no task"):
        harbor.read_all(tmp_path / "t")


def test_a_task_of_others_keeps_its_script_and_its_tests(tmp_path: Path) -> None:
    """The shape of a Harbor task as its documentation shows it."""
    folder = tmp_path / "hello"
    for path, text in {
        "task.toml": 'schema_version = "1.1"\n[task]\nname = "org/hello"\n[metadata]\ncategory = "programming"\n'
        '[verifier]\ntimeout_sec = 120.0\n[environment]\ndocker_image = "org/hello:1"\ncpus = 1\n',
        "instruction.md": "Write hello.txt.\n",
        "environment/Dockerfile": "FROM debian\n",
        "tests/test.sh": "#!/bin/bash\npytest /tests/test_state.py\n",
        "tests/test_state.py": "def test(): ...\n",
        "solution/solve.sh": "echo hello > hello.txt\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    task = harbor.read(folder)
    assert (task.image, task.log_format, task.timeout, task.workdir) == ("org/hello:1", "reward", 120, "/app")
    assert sorted(task.tests) == ["test.sh", "test_state.py"]
    assert task.solution_script == "echo hello > hello.txt\n"
    for name, workdir in (("one", "/app"), ("two", "/srv/code")):
        same = task.model_copy(update={"workdir": workdir})
        harbor.write(same, tmp_path / name / "hello")
        assert harbor.read(tmp_path / name / "hello") == same
    (folder / "task.toml").write_text("")
    with pytest.raises(InvalidInput, match=r"environment\.docker_image is missing"):
        harbor.read(folder)
    (folder / "environment" / "Dockerfile").write_text("FROM debian\nWORKDIR /srv/code/\nWORKDIR deeper\nworkdir /\n")
    task = harbor.read(folder, "my/{id}:2")
    assert (task.image, task.workdir) == ("my/hello:2", "/srv/code")


def test_a_solution_has_the_files_that_stand_beside_it(tmp_path: Path) -> None:
    """Published solutions apply a patch or copy a file of their own folder, by /solution or by where they are."""
    folder = foreign(
        tmp_path / "hello",
        **{
            "solution/solve.sh": 'cd "$(dirname "$0")" && cat "parts/a b" end\n',
            "solution/parts/a b": "one $HOME 'two'\n",
            "solution/end": "no newline",
        },
    )
    script = harbor.read(folder, "any").solution_script
    here = script.replace("/solution", str(tmp_path / "there"))
    told = subprocess.run(["bash", "-c", here], capture_output=True, text=True, check=False)
    assert (told.stdout, told.stderr) == ("one $HOME 'two'\nno newline", "")


FOREIGN = {
    "task.toml": '[metadata]\ndifficulty = "unknown"\n[verifier]\nenv = { KEY = "${KEY}" }\n',
    "instruction.md": "Write hello.txt.\n",
    "environment/Dockerfile": "FROM agentrl/base\nWORKDIR /work/here\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
}


def foreign(folder: Path, task_toml: str = "", **files: str | bytes) -> Path:
    """A task in the form that others publish; `task_toml` adds to its settings."""
    given: dict[str, str | bytes] = {**FOREIGN, **files, "task.toml": task_toml + FOREIGN["task.toml"]}
    for path, text in given.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_the_image_of_a_dockerfile_is_named_by_what_is_beside_it(tmp_path: Path) -> None:
    one, other = foreign(tmp_path / "a/Say.Hello"), foreign(tmp_path / "b/Say.Hello")
    task = harbor.read(one, build=True)
    assert task == harbor.read(other, build=True)
    assert str(task.image).startswith("agentrl-tasks/say-hello:")
    assert (task.workdir, task.difficulty, task.env) == ("/work/here", "medium", {"KEY": "${KEY}"})
    harbor.write(task, tmp_path / "c" / "Say.Hello")
    assert harbor.read(tmp_path / "c" / "Say.Hello") == task
    (other / "environment/data").write_bytes(b"\xff")
    assert harbor.read(other, build=True).image != task.image
    assert context_of(tmp_path / "a", "Say.Hello") == context_of(one, "Say.Hello") == one / "environment"
    with pytest.raises(InvalidInput, match=r"env\.build=true, which builds it \(its commands need a network\)"):
        harbor.read(one)
    (one / "environment/Dockerfile").unlink()
    with pytest.raises(InvalidInput, match="has no Dockerfile"):
        harbor.read(one, build=True)


def test_what_nothing_reads_of_published_tasks_is_told(tmp_path: Path) -> None:
    """The form of Terminal-Bench 2.1's tasks, whose empty tables and zeros say nothing."""
    published = (
        'schema_version = "1.1"\nartifacts = []\nnovel = 3\n[task]\nname = "a/b"\n'
        '[agent]\ntimeout_sec = 9.0\nuser = "agent"\n'
        "[environment]\nbuild_timeout_sec = 600.0\ncpus = 2\ngpus = 0\nallow_internet = true\nmcp_servers = []\n"
        '[environment.env]\n[solution]\nenv = {A = "1"}\n'
    )
    for name in ("one", "two"):
        foreign(tmp_path / name, task_toml=published)
    foreign(tmp_path / "quiet", task_toml='[environment]\nnetwork_mode = "no-network"\n')
    told = unread.describe_unread(tmp_path, ["one", "two", "quiet"])
    assert told == (
        "; fields that are not read: agent.user (2), environment.allow_internet (2), environment.cpus (2), novel (2), "
        "solution.env (2); a sandbox has no network"
    )
    assert unread.describe_unread(tmp_path, ["quiet"]) == ""
    assert told in identity.describe_identity(
        identity.of_splits(make("swe", path=str(tmp_path), build=True), ["train"])
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"task_toml": "[[steps]]\nname = 'a'\n"}, "it has 1 steps"),
        ({"environment/docker-compose.yaml": "services: {}\n"}, "docker-compose"),
        ({"tests/data": b"\xff"}, "is no UTF-8 text"),
    ],
)
def test_a_task_that_can_not_be_played_is_left_out_and_named(
    tmp_path: Path, files: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    foreign(tmp_path / "bad", **files)
    with pytest.raises(InvalidInput, match=rf"no task that can be played.*{said}"):
        harbor.read_all(tmp_path, "x")
    foreign(tmp_path / "good")
    assert [task.id for task in harbor.read_all(tmp_path, "x")] == ["good"]
    assert said in caplog.text


def test_variables_of_this_machine_are_read_when_tests_run(tmp_path: Path) -> None:
    task = harbor.read(foreign(tmp_path / "t"), "x")
    task = task.model_copy(update={"env": {"A": "${KEY}", "B": "${NONE:-b:c}", "C": "$x ${KEY}", "D": "${NONE:-}"}})
    assert variables(task, {"KEY": "secret", "HOME": "/root"}) == {"A": "secret", "B": "b:c", "C": "$x ${KEY}", "D": ""}
    assert "secret" not in task.as_task().model_dump_json()
    with pytest.raises(InvalidInput, match=r"verifier\.env\.A = '\$\{KEY\}': the variable is not set here"):
        variables(task, {})


def test_a_build_is_refused_where_there_is_no_folder_of_dockerfiles(tmp_path: Path) -> None:
    for options in ({}, {"path": "rows.jsonl"}, {"path": str(tmp_path), "image": "x"}):
        with pytest.raises(ConfigError, match=r"env\.build=true: allowed with env\.path=FOLDER"):
            make("swe", build=True, **options)


def test_an_unknown_built_in_task_names_its_neighbour() -> None:
    name = library.names()[0]
    with pytest.raises(UnknownName, match=f"did you mean '{name}'"):
        library.load(name + "s")
