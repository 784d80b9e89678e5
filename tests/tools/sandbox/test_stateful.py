"""The stateful shell and interpreter, and the tools on them, through the registry that runs a model's calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from agentrl.errors import UnknownName
from agentrl.tools.registry import ToolRegistry
from agentrl.tools.sandbox import toolkit
from agentrl.tools.sandbox.base import Outcome, Sandbox
from agentrl.tools.sandbox.local import create_subprocess
from agentrl.tools.sandbox.runner.interpreter import Interpreter
from agentrl.tools.sandbox.runner.resident import ResidentSandbox
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.tools.sandbox.toolkit import Shell, Toolkit
from agentrl.tools.tool import tool
from agentrl.types import FunctionCall, ToolCall
from tests.tools.sandbox.attacks.conftest import run_until_late
from tests.tools.sandbox.conftest import TINY, Make


@pytest.fixture
async def sandbox() -> AsyncIterator[ResidentSandbox]:
    made = await create_subprocess(SandboxSpec())
    assert isinstance(made, ResidentSandbox)
    yield made
    await made.close()


@pytest.fixture
def shell(sandbox: ResidentSandbox) -> Shell:
    return Shell(sandbox, file=f"{sandbox.workdir}/.state")


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["cd /usr", "pwd"], b"/usr\n"),
        (["x='a  b'", 'echo "$x"'], b"a  b\n"),
        (["x=$'line\\nline \\'\"$`\\\\'", 'printf %s "$x"'], b"line\nline '\"$`\\"),
        (["a=(1 'two 2' 3)", 'echo "${a[1]}" ${#a[@]}'], b"two 2 3\n"),
        (["declare -A m=([k]='v w')", 'echo "${m[k]}"'], b"v w\n"),
        (["export E=out", "sh -c 'echo $E'"], b"out\n"),
        (["f() { echo f$1; }", "f 1"], b"f1\n"),
        (
            ["x=1; declare() { :; }; printf() { :; }; set() { :; }; cd() { :; }", "echo $x; type -t cd"],
            b"1\nfunction\n",
        ),
        (["set -o pipefail", "false | true; echo $?"], b"1\n"),
        (["shopt -s nullglob", "echo none-*"], b"\n"),
        (["x=1; false", "echo $x"], b"1\n"),
        (["x=1; exit 3", "echo $x"], b"1\n"),
        (["x=1", "unset x; y=2", "echo [$x] $y"], b"[] 2\n"),
        (["readonly r=1", "echo $r"], b"1\n"),
        (["x=kept", "x=lost; sleep 9", "echo $x"], b"kept\n"),
        (["echo $#"], b"0\n"),
    ],
)
@pytest.mark.slow
async def test_a_shell_carries_over(shell: Shell, commands: list[str], expected: bytes) -> None:
    for command in commands:
        result = await shell.run(command, timeout=1.5 if "sleep" in command else 20)
    assert result.stdout == expected, result


@pytest.mark.slow
async def test_a_folder_that_is_not_there_is_named(sandbox: ResidentSandbox) -> None:
    """Of a `workdir` that nobody had made, every command said no more than that there was none."""
    result = await sandbox.exec("true", cwd="not/there")
    assert (result.outcome, result.exit_code) == (Outcome.NOT_STARTED, 126)
    assert result.detail.endswith("/not/there: No such file or directory")


@pytest.mark.slow
async def test_a_shells_exit_codes_are_its_commands(shell: Shell) -> None:
    codes = [(await shell.run(c)).exit_code for c in ("true", "false", "exit 7", "kill -9 $$", "nonsense_", "if")]
    assert codes == [0, 1, 7, 137, 127, 2]


@pytest.mark.slow
async def test_an_image_without_bash_has_a_stateful_shell_too(make: Make) -> None:
    shell = Shell(make(TINY))
    await shell.run("cd /tmp; export A='x y'; b=2")
    assert (await shell.run('pwd; echo "$A" $b')).stdout == b"/tmp\nx y 2\n"
    assert (await shell.run("exit 4")).exit_code == 4


@pytest.mark.slow
async def test_cells_share_variables_show_values_and_report_errors(sandbox: ResidentSandbox) -> None:
    python = Interpreter(sandbox)
    assert (await python.run("x = 20\nprint('hi')\nx + 1")).stdout == b"hi\n21\n"
    assert (await python.run("def f():\n    return x\nf() * 2")).stdout == b"40\n"
    failed = await python.run("1 / 0")
    assert failed.exit_code == 1
    assert failed.stderr.startswith(b'Traceback (most recent call last):\n  File "<cell>", line 1')
    assert b"SyntaxError" in (await python.run("def")).stderr
    assert (await python.run("import sys; sys.exit(3)")).exit_code == 1
    assert (await python.run("x")).stdout == b"20\n"
    assert (await python.run("input()")).exit_code == 1, "input must not be the next cell"
    await python.close()


@pytest.mark.slow
async def test_cells_neither_see_nor_break_the_program_that_runs_them(sandbox: ResidentSandbox) -> None:
    """A cell that said `report = …` or `json = …` ended the interpreter, and `line` showed the request."""
    cells = Interpreter(sandbox)
    seen = await cells.run("print([name for name in dir() if not name.startswith('__')])")
    assert seen.stdout == b"[]\n"
    names = "ast cell cells code failed json line null os ours report run signal space stream sys trace traceback types"
    await cells.run(" = ".join([*names.split(), "print", "None"]).replace("print = None", "enumerate = None"))
    again = await cells.run("import pickle\ndef f(): return 3\nlen(pickle.dumps(f)) > 0, json")
    assert (again.stdout, again.exit_code) == (b"(True, None)\n", 0)


@pytest.mark.slow
async def test_a_cell_that_takes_too_long_is_interrupted_and_variables_survive(sandbox: ResidentSandbox) -> None:
    python = Interpreter(sandbox, interrupt_timeout=60.0)  # a busy machine answers late
    await python.run("x = 1")
    cell = "import time; print('began', flush=True); time.sleep(600)"
    late = await run_until_late(lambda seconds: python.run(cell, timeout=seconds), b"began", 0.5)
    assert late.outcome is Outcome.TIMEOUT
    assert late.stdout == b"began\n"
    assert "variables are still there" in late.detail
    assert (await python.run("x")).stdout == b"1\n"
    await python.close()


@pytest.mark.slow
async def test_each_cells_output_is_bounded_by_itself(sandbox: ResidentSandbox) -> None:
    python = Interpreter(sandbox)
    long = await python.run("print('a' * 300_000, end='z')")
    assert long.stdout_dropped == 300_001 - sandbox.spec.output_bytes
    assert long.stdout.endswith(b"z")
    assert (await python.run("print('short')")).stdout == b"short\n"
    await python.close()


@tool(sandbox=True)
async def count_files(folder: str, sandbox: Sandbox) -> int:
    """Count the files in a folder.

    Args:
        folder: where.
    """
    return len((await sandbox.exec(["ls", "-A", folder])).stdout.split())


class ToolCaller:
    """A registry over a toolkit and a tool of a user's own, on one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.toolkit = Toolkit(("bash", "python", "edit", "submit"), timeout=60)

        async def provide() -> Sandbox:
            return sandbox

        self.registry = ToolRegistry([*self.toolkit.tools, count_files], sandbox=provide)

    async def call(self, name: str, **arguments: object) -> str:
        call = ToolCall(id="1", function=FunctionCall(name=name, arguments=json.dumps(arguments)))
        content = (await self.registry.run(call)).content
        assert isinstance(content, str)
        return content


@pytest.fixture
def tools(sandbox: ResidentSandbox) -> ToolCaller:
    return ToolCaller(sandbox)


@pytest.mark.slow
async def test_bash_shows_output_then_how_it_ended(tools: ToolCaller) -> None:
    assert await tools.call("bash", command="echo out; echo err >&2; false") == "out\nerr\n[exit code 1]"
    assert await tools.call("bash", command="kill -SEGV $$") == "[killed by signal 11]"
    assert await tools.call("bash", command="cd /usr") == ""
    assert await tools.call("bash", command="pwd") == "/usr"


@pytest.mark.slow
async def test_the_editor_creates_shows_and_changes_files(tools: ToolCaller) -> None:
    assert await tools.call("edit", command="create", path="d/a.py", text="one\ntwo\none\n") == "wrote d/a.py"
    assert "'old' occurs 2 times in d/a.py (lines 1, 3)" in await tools.call(
        "edit", command="str_replace", path="d/a.py", old="one", new="x"
    )
    changed = await tools.call("edit", command="str_replace", path="d/a.py", old="two", new="2\n2.5")
    assert changed == "changed d/a.py:\n     1\tone\n     2\t2\n     3\t2.5\n     4\tone"
    await tools.call("edit", command="insert", path="d/a.py", line=4, text="end")
    assert (await tools.call("edit", command="view", path="d/a.py", line=4)).splitlines() == [
        "     4\tone",
        "     5\tend",
    ]
    assert await tools.call("edit", command="view", path="d") == "a.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": "view", "path": "nowhere"}, "No such file"),
        ({"command": "create", "path": "x"}, "create needs 'text'"),
        ({"command": "str_replace", "path": "nowhere", "old": "a"}, "No such file"),
        ({"command": "insert", "path": "here", "line": 99, "text": "x"}, "between 0 and 1"),
        ({"command": "delete", "path": "here"}, "Error"),
        ({"command": "view", "path": "here", "line": 7}, "past the end"),
    ],
)
async def test_the_editor_says_what_is_wrong(tools: ToolCaller, arguments: dict[str, object], words: str) -> None:
    await tools.call("edit", command="create", path="here", text="only\n")
    answer = await tools.call("edit", **arguments)
    assert answer.startswith("Error:")
    assert words in answer


@pytest.mark.slow
async def test_the_editor_leaves_bytes_that_are_not_text_as_they_are(
    tools: ToolCaller, sandbox: ResidentSandbox
) -> None:
    await sandbox.write("bin", b"\xff\xfeA\xff")
    await tools.call("edit", command="str_replace", path="bin", old="A", new="B")
    assert await sandbox.read("bin") == b"\xff\xfeB\xff"


@pytest.mark.slow
async def test_the_editors_lines_are_those_that_commands_count_and_keep_their_ends(
    tools: ToolCaller, sandbox: ResidentSandbox
) -> None:
    """A form feed was a line's end, and a newline was put there; a file of Windows' could not be changed over lines."""
    await sandbox.write("a", "one\x0ctwo\nthree\n")
    await tools.call("edit", command="insert", path="a", line=1, text="new")
    assert await sandbox.read("a") == b"one\x0ctwo\nnew\nthree\n"
    await sandbox.write("b", "one\r\ntwo\r\nthree\r\n")
    await tools.call("edit", command="str_replace", path="b", old="one\ntwo", new="1\n2")
    await tools.call("edit", command="insert", path="b", line=3, text="four\n")
    assert await sandbox.read("b") == b"1\r\n2\r\nthree\r\nfour\r\n"


async def test_a_file_that_is_larger_than_is_read_is_not_edited(
    tools: ToolCaller, sandbox: ResidentSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first 16 MiB were written back in place of all of it."""
    monkeypatch.setattr(toolkit, "FILE_BYTES", 8)
    await sandbox.write("big", "one\ntwo\nthree\n")
    for arguments in ({"command": "str_replace", "old": "one", "new": "1"}, {"command": "view"}):
        assert "big has 8 bytes or more: view or change it by a command" in await tools.call(
            "edit", path="big", **arguments
        )
    assert await sandbox.read("big") == b"one\ntwo\nthree\n"


async def test_python_and_a_users_own_tool_share_the_sandbox(tools: ToolCaller) -> None:
    assert await tools.call("python", code="open('made', 'w').close(); 6 * 7") == "42"
    assert await tools.call("count_files", folder=".") == "1"


@pytest.mark.slow
async def test_submit_is_remembered(tools: ToolCaller) -> None:
    assert tools.toolkit.submitted is None
    await tools.call("submit", answer="done")
    assert tools.toolkit.submitted == "done"


def test_an_unknown_tool_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'bash'"):
        Toolkit(("bahs",))
