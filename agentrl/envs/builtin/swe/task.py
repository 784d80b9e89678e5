"""A software task: a repository, a report of what is wrong with it, and the tests that score a repair.

The fields are SWE-bench's (FAIL_TO_PASS, PASS_TO_PASS, base commit, test patch), in lower case, and what it takes to do
without SWE-bench's images: the repository itself, as the few commits that make it. `harbor` reads and writes tasks as
directories, `library` holds those that come with the package, `repository` turns commits into a git repository.

A task contains its solution and its hidden tests. Neither may enter the agent's sandbox: the agent may see
`instruction`, and the repository as `commits` (or the image) make it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from agentrl.errors import InvalidInput
from agentrl.types import Task

Difficulty = Literal["easy", "medium", "hard"]
DIFFICULTIES: tuple[str, ...] = get_args(Difficulty)
WORKDIR = "/work/repo"
"""The default directory of a task's repository, in a writable tree of the default sandbox."""
TEST_COMMAND = "python3 -m pytest -q -rA"


def _inside(path: str) -> str:
    bad = not path or path.startswith("/") or "\0" in path or posixpath.normpath(path) != path
    if bad or path.split("/")[0] in ("..", ".", ".git"):
        raise ValueError("allowed: a path inside the repository, relative and in its shortest form, not in .git")
    return path


RepoPath = Annotated[str, AfterValidator(_inside)]
"""A path from the repository's root, such as "src/parse.py"."""


class Commit(BaseModel):
    """One step of the repository's history: the files it writes, whole, and (None) those it deletes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    message: Annotated[str, Field(min_length=1)]
    files: dict[RepoPath, str | None]
    author: Annotated[str, Field(pattern=r"^[^<>\n]+ <[^<>\n]+>$")] = "Maintainer <maintainer@example.org>"
    time: NonNegativeInt = 0
    """Seconds since 1970, in UTC: part of the commit's name, so that the same task has the same commits everywhere."""


class SweTask(BaseModel):
    """One repository to repair.

    Either `commits` make the repository, or `image` has it at `workdir` already (then `base_commit` says where it
    begins). Tests are named as the parser `log_format` names them; for the built-in tasks that is pytest's
    `path::Class::name`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    instruction: Annotated[str, Field(min_length=1)]
    """The agent's prompt."""
    difficulty: Difficulty = "medium"
    language: str = "python"
    tags: tuple[str, ...] = ()

    repo: str = ""
    """owner/name of the project, where it has one."""
    version: str = ""
    """The project's version in the data set."""
    image: str | None = None
    """The image; None is the sandbox's default one."""
    workdir: Annotated[str, Field(pattern=r"^/[^\n]*[^/\n]$")] = WORKDIR
    """The repository's directory in the sandbox."""
    commits: tuple[Commit, ...] = ()
    """The history that makes the repository, oldest first; the last is what the agent finds."""
    base_commit: str = ""
    """The commit to begin from, where the image has the repository; '' is its HEAD."""
    setup: tuple[str, ...] = ()
    """Shell lines to be run in `workdir` once the repository is there, before the agent and before each scoring."""

    test_command: str = TEST_COMMAND
    """Runs tests, in `workdir`; test files or names are appended to it."""
    log_format: str = "pytest"
    """The parser that reads the log (a name of `logs`); "reward": `tests/test.sh` writes a reward, as Harbor's do."""
    tests: dict[RepoPath, str] = Field(default_factory=dict)
    """Hidden test files, whole; at scoring they replace what is at their paths. With log_format "reward": of /tests."""
    test_patch: str = ""
    """The same as a diff, where a dataset gives no more."""
    visible_tests: tuple[RepoPath, ...] = ()
    """Test files that the agent can see and run; protected at scoring like the hidden ones."""
    fail_to_pass: tuple[str, ...] = ()
    """Tests that fail at the base commit and must pass."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that pass at the base commit and must go on passing."""
    paths: tuple[str, ...] = ("",)
    """Directories of the repository that its modules are imported from; '' is its root."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables that the tests need; with log_format "reward" ${NAME} and ${NAME:-default} are this machine's own."""
    timeout: PositiveFloat = 60.0
    """Seconds for all of its tests."""
    agent_timeout: PositiveFloat = 600.0
    """Seconds for the agent's work."""

    solution: str = ""
    """The reference solution, as a diff that `git apply` takes."""
    solution_script: str = ""
    """The same as a shell script, where a task has no diff."""

    @model_validator(mode="after")
    def _whole(self) -> SweTask:
        if not self.commits and self.image is None:
            raise ValueError("neither commits nor image: one of them must bring the repository")
        if self.commits and self.base_commit:
            raise ValueError(f"base_commit={self.base_commit!r} beside commits: allowed: '' (the last of them)")
        if not self.fail_to_pass and self.log_format != "reward":
            raise ValueError("fail_to_pass is empty: allowed: at least one test (or log_format 'reward')")
        if both := sorted(set(self.fail_to_pass) & set(self.pass_to_pass)):
            raise ValueError(f"{both[0]!r} is in fail_to_pass and in pass_to_pass: allowed: in one of them")
        if missing := [path for path in self.visible_tests if self.commits and path not in self.files]:
            raise ValueError(f"visible_tests: {missing[0]!r} is no file of the repository")
        return self

    @property
    def files(self) -> dict[str, str]:
        """The repository as the agent finds it, where `commits` make it: text by path."""
        tree: dict[str, str | None] = {}
        for commit in self.commits:
            tree |= commit.files
        return {path: text for path, text in sorted(tree.items()) if text is not None}

    @property
    def required(self) -> tuple[str, ...]:
        """Every test that a right solution passes."""
        return (*self.fail_to_pass, *self.pass_to_pass)

    @property
    def test_files(self) -> dict[str, str]:
        """All test files that scoring puts in place: the hidden ones, and the visible ones as they were."""
        files = self.files
        return {path: files[path] for path in self.visible_tests if path in files} | self.tests

    @classmethod
    def build(cls, fields: Mapping[str, Any]) -> SweTask:
        """A task from its fields.

        Raises:
            InvalidInput: a field is unknown, missing or wrong; the message names it, its value and what is allowed.
        """
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            raise InvalidInput(f"software task {fields.get('id', '')!r}: {explain(error)}") from None

    @classmethod
    def of(cls, task: Task) -> SweTask:
        """Read a `Task` that `as_task` made (or a dataset row of the same fields).

        Raises:
            InvalidInput: as `build`.
        """
        return cls.build({**task.data, "id": task.id})

    def as_task(self) -> Task:
        """The task as environments hand it on; what has its default value is left out."""
        return Task(id=self.id, data=self.model_dump(mode="json", exclude={"id"}, exclude_defaults=True))


def explain(error: ValidationError) -> str:
    """Explain pydantic's findings, a clause for each field: its name, what is allowed, and what it is."""
    clauses = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"])
        value = repr(problem["input"])
        shown = (
            ""
            if problem["type"] == "missing" or not name
            else f" (it is {value if len(value) < 120 else value[:120] + '…'})"
        )
        clauses.append(f"{name + ': ' if name else ''}{problem['msg'].removeprefix('Value error, ')}{shown}")
    return "; ".join(clauses)
