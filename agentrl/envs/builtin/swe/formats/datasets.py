"""Tasks from published data sets: SWE-bench's rows, and those of SWE-Gym, SWE-smith and R2E-Gym.

All four bring a repository as an image, at `/testbed`, and name tests as a log parser names them; they differ in how
their images are called and in what their patches mean. Facts are from the projects' own sources:

- SWE-bench (`swebench` 5.0.2: `types.SWEbenchInstance`, `harness/utils.make_test_spec`; earlier releases'
  `harness/constants/python.py` for the test commands): `swebench/sweb.eval.x86_64.<id>`, `__` written `_1776_`, all in
  lower case, as Docker allows no double underscore; the conda environment `testbed`. Newer rows say `image` and
  `log_parser` themselves.
- SWE-Gym (arXiv:2412.21139): the same fields; `xingyaoww/sweb.eval.x86_64.<id>`, `__` written `_s_`.
- SWE-smith (arXiv:2504.21798; `swesmith/harness/utils.py`): `image_name`, one image for a repository. Its `patch`
  *makes* the bug, and the solution is the patch reversed. The project fetches a branch that holds the bug; a sandbox
  has no network, so the patch is applied, and the history that contains the original is removed. Tests are the
  repository's own, restored before they are run.
- R2E-Gym (arXiv:2504.07164; `agenthub/runtime/docker.py`): `docker_image`, a virtual environment in the repository, and
  tests of its own (in `execution_result_content`), with the outcome that each must have (`expected_output_json`). They
  lie in the image too, from where they are removed. Given up: a test that is expected to fail is not asked about.

A test command is the project's default one; versions of a project that need another (old Djangos, say) can be given
one with `test_command=`.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.envs.builtin.swe import logs
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.data.rows import Row, describe_content, read_rows
from agentrl.errors import InvalidInput, unknown_name

WORKDIR = "/testbed"
SECONDS = 1800.0
"""For a task's tests, as the harness allows them."""
CONDA = "source /opt/miniconda3/bin/activate && conda activate testbed && "
"""Comes before every command of SWE-bench's images, and of those made in its manner."""
PYTEST = "pytest -rA"
SQUASH = (
    "git add -A && git -c user.name=base -c user.email=base@example.org commit -q -m bug"
    " && git reset -q --hard $(git -c user.name=base -c user.email=base@example.org commit-tree -m base HEAD^{tree})"
    " && rm -rf .git/logs .git/ORIG_HEAD && git gc -q --prune=now"
)
"""Makes the current tree the only commit, so that no history contains the original."""
COMMANDS: Mapping[str, str] = {
    "astropy/astropy": "pytest -rA -vv -o console_output_style=classic --tb=no",
    "django/django": "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    "mwaskom/seaborn": "pytest --no-header -rA",
    "sphinx-doc/sphinx": "tox --current-env -epy39 -v --",
    "sympy/sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
}
"""Test commands of SWE-bench's projects; the others' is `PYTEST`."""


def read_tasks(path: str | Path, layout: str = "auto", **options: str) -> tuple[list[SweTask], str]:
    """The tasks of a file, and what it holds, in words.

    Args:
        path: JSONL or Parquet.
        layout: one of `LAYOUTS`, or auto, which goes by each row's fields.
        options: `image` and `test_command` in place of what the layout says; `{id}` in an image stands for the row's
            name as Docker takes it.

    Raises:
        ConfigError: no such file.
        InvalidInput: a row is not of that layout; it names the field.
        UnknownName: no such layout.
    """
    tasks, layouts, read, columns = [], Counter[str](), set[str](), dict[str, None]()
    for _, values in read_rows(path):
        columns |= dict.fromkeys(values)
        tasks.append(task_of(Row(values, read), layout, **options))
        layouts[layout_of(values) if layout == "auto" else layout] += 1
    return tasks, describe_content(f"env.path = {str(path)!r}", len(tasks), "tasks", layouts, columns.keys() - read)


def task_of(
    row: Mapping[str, Any], layout: str = "auto", *, image: str | None = None, test_command: str | None = None
) -> SweTask:
    """A task from one row; see `read_tasks`."""
    layout = layout_of(row) if layout == "auto" else layout
    if layout not in LAYOUTS:
        raise unknown_name("layout of software tasks", layout, [*LAYOUTS, "auto"])
    try:
        fields = LAYOUTS[layout](row)
    except KeyError as error:
        name = row.get("instance_id", "")
        raise InvalidInput(f"row {name!r} has no {error.args[0]!r}, which {layout}'s rows have") from None
    if image is not None:
        fields["image"] = image.replace("{id}", docker_name(str(fields["id"]), "_1776_"))
    if test_command is not None:
        fields["test_command"] = test_command
    return SweTask.build(fields)


def layout_of(row: Mapping[str, Any]) -> str:
    """Recognise a row's data set by its fields; SWE-Gym's have the fields of SWE-bench's, but other projects."""
    if "expected_output_json" in row:
        return "r2e"
    if "swesmith" in str(row.get("image_name", "")) or str(row.get("repo", "")).startswith("swesmith/"):
        return "smith"
    return "swegym" if row.get("repo") in GYM_REPOSITORIES else "swebench"


def docker_name(instance: str, double_underscore: str) -> str:
    """A row's name as a part of an image's: in lower case, its double underscore written otherwise."""
    return instance.replace("__", double_underscore).lower()


def _names(value: Any) -> tuple[str, ...]:
    """Names of tests, which rows hold as a list or as JSON text."""
    found = json.loads(value) if isinstance(value, str) else value
    return tuple(dict.fromkeys(str(name) for name in found))


def _swebench(row: Mapping[str, Any], *, image: str, underscore: str) -> dict[str, Any]:
    name, repo = row["instance_id"], row["repo"]
    parser = str(row.get("log_parser") or "").removeprefix("parse_log_")
    must, keep = _names(row["FAIL_TO_PASS"]), _names(row["PASS_TO_PASS"])
    return {
        "id": name,
        "instruction": row["problem_statement"],
        "repo": repo,
        "version": str(row.get("version") or ""),
        "image": row.get("image") or row.get("image_name") or image.format(docker_name(name, underscore)),
        "workdir": WORKDIR,
        "base_commit": row["base_commit"],
        "solution": row.get("patch") or "",
        "test_patch": row.get("test_patch") or "",
        "test_command": CONDA + COMMANDS.get(repo, PYTEST),
        "log_format": parser if parser in logs.FORMATS else logs.format_of(repo),
        "fail_to_pass": must,
        "pass_to_pass": tuple(test for test in keep if test not in must),
        "timeout": SECONDS,
    }


def _smith(row: Mapping[str, Any]) -> dict[str, Any]:
    named = str(row["image_name"]).removesuffix(":latest").replace("__", "_1776_")
    left_out = {"base_commit": "", "test_patch": ""}
    own = row.over(left_out) if isinstance(row, Row) else {**row, **left_out}
    fields = _swebench(own, image="", underscore="")
    files = dict.fromkeys(test.partition("::")[0] for test in (*fields["fail_to_pass"], *fields["pass_to_pass"]))
    paths = " ".join(map(shlex.quote, files))
    return fields | {
        "image": (named if "/" in named else f"jyangballin/{named}") + ":latest",
        "setup": (_heredoc("git apply", row["patch"]), SQUASH),
        "solution": "",
        "solution_script": _heredoc("git apply --reverse", row["patch"]),
        "test_command": f"{CONDA}git checkout -q HEAD -- {paths} && {PYTEST} {paths}",
        "log_format": "pytest",
    }


def _heredoc(command: str, patch: str) -> str:
    return f"{command} - <<'END_OF_PATCH'\n{patch.rstrip(chr(10))}\nEND_OF_PATCH"


def _r2e(row: Mapping[str, Any]) -> dict[str, Any]:
    ran = json.loads(row["execution_result_content"])
    expected = {name.split(" - ")[0]: status for name, status in json.loads(row["expected_output_json"]).items()}
    before = logs.parse(str(ran.get("old_commit_res_stdout") or ""), "r2e")
    must = [name for name, status in expected.items() if name and status == "PASSED"]
    statement = str(row["problem_statement"])
    return {
        "id": f"{row['repo_name']}__{row['commit_hash']}",
        "instruction": statement.partition("[ISSUE]")[2].partition("[/ISSUE]")[0].strip() or statement,
        "repo": row["repo_name"],
        "image": row["docker_image"],
        "workdir": WORKDIR,
        "setup": ("rm -rf /r2e_tests /root/r2e_tests r2e_tests run_tests.sh",),
        "tests": {
            f"r2e_tests/{name.rpartition('/')[2]}": code
            for name, code in zip(ran["test_file_names"], ran["test_file_codes"], strict=True)
        },
        "test_command": ".venv/bin/python -W ignore -m pytest -rA",
        "log_format": "r2e",
        "fail_to_pass": tuple(name for name in must if before.get(name) != "PASSED"),
        "pass_to_pass": tuple(name for name in must if before.get(name) == "PASSED"),
        "timeout": SECONDS,
    }


GYM_REPOSITORIES = frozenset(
    {
        *("bokeh/bokeh", "conan-io/conan", "dask/dask", "facebookresearch/hydra", "getmoto/moto", "iterative/dvc"),
        *("modin-project/modin", "pandas-dev/pandas", "Project-MONAI/MONAI", "pydantic/pydantic", "python/mypy"),
    }
)
"""The projects of SWE-Gym's rows."""
LAYOUTS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "swebench": partial(_swebench, image="swebench/sweb.eval.x86_64.{}:latest", underscore="_1776_"),
    "swegym": partial(_swebench, image="xingyaoww/sweb.eval.x86_64.{}:latest", underscore="_s_"),
    "smith": _smith,
    "r2e": _r2e,
}
"""The functions that make a task's fields out of a row."""
