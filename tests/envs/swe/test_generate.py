"""The generator: every kind of fault is planted, kept where a test catches it, and makes a task that proves itself."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from typer.testing import CliRunner

from agentrl.envs import sandboxes
from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.commands import app
from agentrl.envs.builtin.swe.env import SPEC
from agentrl.envs.builtin.swe.formats import harbor
from agentrl.envs.builtin.swe.generation.faults import FaultKind, faults
from agentrl.envs.builtin.swe.generation.generate import Package, candidates, generate
from agentrl.envs.builtin.swe.generation.proof import prove, solved_tree
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.errors import InvalidInput
from agentrl.tools.sandbox.base import Sandbox

T = TypeVar("T")
STORE = '''\
"""A store of parcels."""


class Store:
    def __init__(self, room):
        self.room = room
        self.parcels = {}

    def put(self, name, weight):
        """Take a parcel in; whether there was room."""
        if weight <= 0:
            raise ValueError("no weight")
        if self.total() + weight > self.room:  # comments stay
            return False
        self.parcels[name] = weight
        return True

    def total(self):
        return sum(self.parcels.values())

    def weight(self, name):
        try:
            return self.parcels[name]
        except KeyError:
            return None


def label(weight, room):
    share = ratio(weight, room)
    if share > 0.5:
        return "large"
    elif share > 0.1:
        return "medium"
    return "small"


def ratio(part, whole):
    return part / whole


def unseen(number):
    """No test calls this."""
    if number < 5 and number != 3:
        return max(number + 1, 7)
    return number
'''
TESTS = """\
import pytest

from store import Store, label


def test_room():
    store = Store(10)
    assert store.put("a", 4)
    assert store.put("b", 6)
    assert not store.put("c", 1)
    assert store.total() == 10


def test_weights():
    store = Store(10)
    store.put("a", 4)
    assert store.weight("a") == 4
    assert store.weight("b") is None


def test_no_weight():
    with pytest.raises(ValueError):
        Store(10).put("a", 0)


def test_a_day():
    store = Store(10)
    taken = [store.put(name, weight) for name, weight in [("a", 4), ("b", 5), ("c", 2), ("d", 1)]]
    assert (taken, store.total(), store.parcels) == ([True, True, False, True], 10, {"a": 4, "b": 5, "d": 1})
    assert [store.weight(name) for name in "abcx"] == [4, 5, None, None]
"""
LABELS = """\
from store import label


def test_labels():
    assert [label(weight, 10) for weight in (1, 2, 5, 6)] == ["small", "medium", "medium", "large"]


def test_broken_already():
    assert label(1, 0) == "odd"
"""
FILES = {"store.py": STORE, "tests/test_store.py": TESTS, "tests/test_labels.py": LABELS, "README.md": "A store.\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("hidden")
    (root / "picture.png").write_bytes(b"\x89PNG\xff")
    return root


def in_sandbox(work: Callable[[Sandbox], Awaitable[T]]) -> T:
    async def run() -> T:
        async with sandboxes.supplier("docker").pool.lease(SPEC) as sandbox:
            return await work(sandbox)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def made(docker: None) -> list[SweTask]:
    """All tasks that can be made of the example."""
    return in_sandbox(lambda sandbox: generate(Package("store", FILES), sandbox, count=100, seed=1))


def kinds_of(tasks: list[SweTask]) -> set[str]:
    return {task.tags[1] for task in tasks}


@pytest.mark.slow
def test_every_kind_is_planted_and_caught(made: list[SweTask]) -> None:
    assert kinds_of(made) == {kind.value for kind in FaultKind}
    assert len({task.id for task in made}) == len(made) >= 10


@pytest.mark.slow
def test_what_is_made_proves_itself_after_it_was_written_and_read(made: list[SweTask], tmp_path: Path) -> None:
    one_of_each = list({task.tags[1]: task for task in made}.values())
    for task in one_of_each:
        harbor.write(task, tmp_path / task.id)
    read = harbor.read_all(tmp_path)
    assert sorted(read, key=lambda task: task.id) == sorted(one_of_each, key=lambda task: task.id)
    assert in_sandbox(lambda sandbox: prove(sandbox, read)) == {task.id: [] for task in read}


@pytest.mark.slow
def test_a_fault_that_no_test_catches_makes_no_task(made: list[SweTask]) -> None:
    begin = STORE[: STORE.index("def unseen")].count("\n")
    tried = list(candidates(Package("store", FILES), tuple(FaultKind), 1))
    assert any(c.fault.line > begin for c in tried)
    for task in made:
        broken, whole = task.files["store.py"].split("def unseen")[1], STORE.split("def unseen")[1]
        assert broken == whole


@pytest.mark.slow
def test_tests_that_failed_before_are_required_of_no_patch(made: list[SweTask]) -> None:
    assert all("tests/test_labels.py::test_broken_already" not in task.required for task in made)


@pytest.mark.slow
def test_the_solution_restores_the_package_and_hides_the_tests_that_show_it(made: list[SweTask]) -> None:
    for task in made:
        assert solved_tree(task)["store.py"].data.decode() == STORE
        assert set(task.tests) == {test.partition("::")[0] for test in task.fail_to_pass}
        assert not set(task.tests) & set(task.files)
        assert set(task.tests) | set(task.visible_tests) == {"tests/test_store.py", "tests/test_labels.py"}
        assert "store.py" not in task.instruction


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_the_command_makes_the_same_tasks_of_the_same_seed(folder: Path, tmp_path: Path) -> None:
    for out in ("one", "two"):
        words = [str(folder), "--out", str(tmp_path / out), "--count", "1", "--seed", "5", "--timeout", "30"]
        done = CliRunner().invoke(app, ["generate", *words], catch_exceptions=False)
        assert (done.exit_code, "1 task in" in done.output) == (0, True)
    one, two = (harbor.read_all(tmp_path / out) for out in ("one", "two"))
    assert one == two
    assert len(one) == 1


def test_the_order_of_faults_is_decided_by_the_seed_and_alternates_kinds() -> None:
    package = Package("store", FILES)
    orders = [list(candidates(package, tuple(FaultKind), seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert [c.fault.kind for c in orders[0][:5]] == list(FaultKind)
    assert len(orders[0]) == len(faults(STORE))


@pytest.mark.slow
def test_a_fault_is_one_edit_and_everything_around_it_stays() -> None:
    """Over every program of the built-in tasks."""
    count = 0
    for task in library.builtin()[::6]:
        for path, source in task.files.items():
            if not path.endswith(".py"):
                continue
            data, plain = source.encode(), ast.dump(ast.parse(source))
            for fault in faults(source):
                broken = fault.plant(source)
                edited = broken.encode()
                assert edited[: fault.start] == data[: fault.start]
                assert edited[fault.start + len(fault.text.encode()) :] == data[fault.end :]
                assert ast.dump(ast.parse(broken)) != plain
                count += 1
    assert count > 200


@pytest.mark.parametrize(
    ("kind", "source", "planted"),
    [
        (FaultKind.OPERATOR, "x = (a) + (b)  # +\n", ["x = (a) - (b)  # +\n"]),
        (FaultKind.OPERATOR, "a and b and c\n", ["a or b and c\n", "a and b or c\n"]),
        (FaultKind.OPERATOR, "x not   in y\n", ["x in y\n"]),
        (FaultKind.OPERATOR, "if not x: pass\n", ["if x: pass\n"]),
        (FaultKind.OPERATOR, "x += 'é' * 2\n", ["x -= 'é' * 2\n"]),
        (FaultKind.BOUNDARY, "a < b <= c\n", ["a <= b <= c\n", "a < b < c\n"]),
        (FaultKind.BOUNDARY, "x[1:n]\n", ["x[0:n]\n", "x[2:n]\n"]),
        (FaultKind.BOUNDARY, "range(0, n)\n", ["range(1, n)\n"]),
        (FaultKind.ARGUMENT, "f('ö', [1,\n 2])\n", ["f([1,\n 2], 'ö')\n"]),
        (FaultKind.ARGUMENT, "f(a, *b)\n", []),
        (FaultKind.ARGUMENT, "f(a, a)\n", []),
        (FaultKind.CASE, "if a:\n    b\nelif c:\n    d\nelse:\n    e\n", ["if a:\n    b\nelse:\n    e\n"]),
        (FaultKind.CASE, "def f(x):\n    if x:\n        return 1\n    return 2\n", ["def f(x):\n    return 2\n"]),
        (
            FaultKind.CASE,
            "match x:\n    case 1:\n        a\n    case 2:\n        b\n",
            ["match x:\n    case 2:\n        b\n", "match x:\n    case 1:\n        a\n"],
        ),
        (FaultKind.CASE, "if a:\n    pass\n", []),
        (
            FaultKind.EXCEPTION,
            "try:\n    f()\nexcept (KeyError, OSError):\n    raise\n",
            [
                "try:\n    f()\nexcept KeyError:\n    raise\n",
                "try:\n    f()\nexcept OSError:\n    raise\n",
                "try:\n    f()\nexcept (KeyError, OSError):\n    pass\n",
            ],
        ),
        (
            FaultKind.EXCEPTION,
            "try:\n    f()\nexcept KeyError:\n    g()\n",
            ["try:\n    f()\nexcept IndexError:\n    g()\n"],
        ),
    ],
)
def test_faults_of_each_kind(kind: FaultKind, source: str, planted: list[str]) -> None:
    assert sorted(fault.plant(source) for fault in faults(source, [kind])) == sorted(planted)


def test_what_is_no_package_says_so(folder: Path, tmp_path: Path) -> None:
    assert set(Package.read(folder).files) == set(FILES)
    with pytest.raises(InvalidInput, match="is no folder"):
        Package.read(tmp_path / "absent")
    with pytest.raises(InvalidInput, match="has no tests"):
        Package("empty", {"a.py": ""})


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_a_package_whose_tests_all_fail_says_why() -> None:
    package = Package("broken", {"a.py": "", "test_a.py": "import absent_module\n"})
    with pytest.raises(InvalidInput, match=r"(?s)no test passes as it is.*absent_module"):
        in_sandbox(lambda sandbox: generate(package, sandbox, count=1))
    with pytest.raises(InvalidInput, match="count is 0"):
        in_sandbox(lambda sandbox: generate(package, sandbox, count=0))
