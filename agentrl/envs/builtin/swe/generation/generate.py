"""Generating tasks: faults planted into a given package, of which those are kept that some of its tests detect.

    agentrl swe generate PACKAGE --out FOLDER --count 20 --seed 0

PACKAGE is a project's folder with its tests in it. Tests that pass before (twice: what passes only sometimes is left
out) and fail with a fault planted are that task's FAIL_TO_PASS; the files that hold them are hidden, and the other
test files stay for the agent to run. Which faults are tried, in which order, is decided by the seed, kind after kind
in turn. The task's instruction describes what fails, never where the fault is.

Given up: a package whose tests need more than pytest and the standard library needs an image of its own (`image`), and
a fault that makes tests run for ever is skipped, since each scoring would wait until its timeout.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from agentrl.envs.builtin.swe.changes import File
from agentrl.envs.builtin.swe.formats import harbor
from agentrl.envs.builtin.swe.generation.faults import FaultKind, SourceFault, faults
from agentrl.envs.builtin.swe.generation.find_key import examine
from agentrl.envs.builtin.swe.generation.proof import Outcomes, Trial, run_trials
from agentrl.envs.builtin.swe.patch import as_patch
from agentrl.envs.builtin.swe.task import Commit, Difficulty, SweTask
from agentrl.errors import InvalidInput
from agentrl.tools.sandbox import Sandbox, SandboxSpec

SKIPPED = frozenset({"__pycache__", "node_modules", "build", "dist", "venv"})
NOT_PLANTED = frozenset({"setup.py", "conftest.py", "__main__.py"})
MAX_FILE, MAX_FILES = 1 << 20, 2000
AT_ONCE = 12
"""Faults that are tried at once; twice the number of missing tasks, where that is less."""
TIME = 1_700_000_000
"""The commit's, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Package:
    """A project whose tests pass.

    Attributes:
        name: of the project.
        files: all of its text files, by path.
        paths: directories that its modules are imported from.
        image: the sandbox image that its tests run in; None is the default one.
        timeout: seconds for all of its tests.
    """

    name: str
    files: Mapping[str, str]
    paths: tuple[str, ...] = ("",)
    image: str | None = None
    timeout: float = 60.0
    tests: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = tuple(sorted(path for path in self.files if is_test(path)))
        if not found:
            raise InvalidInput(f"package {self.name!r} has no tests: allowed: files test_*.py or *_test.py in it")
        object.__setattr__(self, "tests", found)

    @classmethod
    def read(cls, folder: Path | str, *, image: str | None = None, timeout: float = 60.0) -> Package:
        """A project's folder; hidden files, caches and what is no text are left out.

        Raises:
            InvalidInput: it is no folder, has no tests, or is too large.
        """
        root = Path(folder).resolve()
        if not root.is_dir():
            raise InvalidInput(f"package: {str(folder)!r} is no folder: allowed: a project's folder with tests in it")
        files = dict(_texts(root))
        paths = ("", "src") if (root / "src").is_dir() else ("",)
        return cls(root.name, files, paths, image, timeout)

    def trial(self, changes: Mapping[str, str]) -> Trial:
        """All of its tests, with some files changed."""
        tree = {path: File(text.encode()) for path, text in {**self.files, **changes}.items()}
        return Trial(tree, self.tests, self.paths, self.timeout)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A fault and the file it is for."""

    path: str
    fault: SourceFault


def is_test(path: str) -> bool:
    """Return whether a file holds tests."""
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def candidates(package: Package, kinds: Sequence[FaultKind], seed: int) -> Iterator[_Candidate]:
    """Every fault, in an order that the seed decides, alternating between kinds."""
    rng = random.Random(f"{seed}/{package.name}")
    queues: list[list[_Candidate]] = []
    for kind in kinds:
        queue = [
            _Candidate(path, fault)
            for path, text in sorted(package.files.items())
            if _plantable(path)
            for fault in faults(text, [kind])
        ]
        rng.shuffle(queue)
        queues.append(queue)
    while any(queues):
        yield from (queue.pop() for queue in queues if queue)


def _plantable(path: str) -> bool:
    folders, _, name = path.rpartition("/")
    outside = {"tests", "test", "docs", "examples"} & set(folders.split("/"))
    return name.endswith(".py") and name not in NOT_PLANTED and not is_test(path) and not outside


async def generate(
    package: Package, sandbox: Sandbox, *, count: int, seed: int = 0, kinds: Sequence[FaultKind] = tuple(FaultKind)
) -> list[SweTask]:
    """Tasks with one fault each, at most `count`: fewer where no more are caught by tests and can be scored.

    Raises:
        InvalidInput: no test of the package passes as it is, or a setting is wrong.
        SandboxError: the sandbox failed.
    """
    if count < 1 or not kinds:
        raise InvalidInput(f"count is {count} and kinds are {list(kinds)}: allowed: at least one of each")
    plain = await run_trials(sandbox, [package.trial({})] * 2)
    steady = frozenset.intersection(*(_passed(outcomes) for outcomes in plain))
    if not steady:
        said = next(iter(plain[0].messages.values()), "no test was run")
        raise InvalidInput(f"package {package.name!r}: no test passes as it is: {said[-300:]}")
    tasks: list[SweTask] = []
    order = candidates(package, kinds, seed)
    while len(tasks) < count and (tried := list(islice(order, min(AT_ONCE, 2 * (count - len(tasks)))))):
        trials = [package.trial({c.path: c.fault.plant(package.files[c.path])}) for c in tried]
        for candidate, outcomes in zip(tried, await run_trials(sandbox, trials), strict=True):
            caught = steady - _passed(outcomes)
            if caught and outcomes.finished and len(tasks) < count:
                task = _task(package, candidate, steady, caught, outcomes)
                if await scorable(task, sandbox):
                    tasks.append(task)
    return tasks


async def scorable(task: SweTask, sandbox: Sandbox) -> bool:
    """Return whether a task can be scored (`find_key`): its tests reach assertions, and can't be guessed."""
    _, complaints = await examine(task, sandbox)
    return not complaints


def _passed(outcomes: Outcomes) -> frozenset[str]:
    return frozenset(test for test, good in outcomes.passed.items() if good and " " not in test)


def _task(
    package: Package, candidate: _Candidate, steady: frozenset[str], caught: frozenset[str], outcomes: Outcomes
) -> SweTask:
    whole, path = package.files, candidate.path
    broken = candidate.fault.plant(whole[path])
    hidden = sorted({test.partition("::")[0] for test in caught})
    files: dict[str, str | None] = {name: text for name, text in whole.items() if name not in hidden}
    files[path] = broken
    was, now = File(broken.encode()), File(whole[path].encode())
    mark = hashlib.sha256(f"{path}:{candidate.fault}".encode()).hexdigest()[:8]
    return SweTask(
        id=f"{package.name}-{candidate.fault.kind}-{mark}",
        instruction=_instruction(package.name, sorted(caught), outcomes),
        difficulty=_difficulty(len(caught), len(steady)),
        tags=("planted", candidate.fault.kind.value),
        image=package.image,
        commits=(Commit(message=f"Import {package.name}", files=files, time=TIME),),
        tests={name: whole[name] for name in hidden},
        visible_tests=tuple(name for name in package.tests if name not in hidden),
        fail_to_pass=tuple(sorted(caught)),
        pass_to_pass=tuple(sorted(steady - caught)),
        paths=package.paths,
        timeout=package.timeout,
        solution=as_patch({path: was}, {path: now}).decode(),
    )


def _difficulty(caught: int, tests: int) -> Difficulty:
    """A fault that few tests detect is hard to find."""
    return "easy" if caught * 4 >= tests else "medium" if caught > 1 else "hard"


def _instruction(name: str, caught: Sequence[str], outcomes: Outcomes) -> str:
    """What fails, in the words of the tests' names and messages."""
    lines = [f"# {name}: something that used to work doesn't any more", "", "What should hold, and doesn't:", ""]
    for test in caught[:5]:
        words = test.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")
        said = [line[2:].strip() for line in outcomes.messages.get(test, "").splitlines() if line.startswith("E ")]
        lines.append(f"* {words}" + (f" (`{said[0]}`)" if said else ""))
    if len(caught) > 5:
        lines.append(f"* and {len(caught) - 5} more of the kind")
    return "\n".join([*lines, "", "Find the cause and repair it; the rest must go on working.", ""])


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    count = 0
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if not path.is_file() or any(part in SKIPPED or part.startswith(".") for part in parts):
            continue
        try:
            text = path.read_bytes()[: MAX_FILE + 1].decode()
        except UnicodeDecodeError:
            continue
        count += 1
        if len(text) > MAX_FILE or count > MAX_FILES:
            raise InvalidInput(f"package: {root} is too large: allowed: {MAX_FILES} files of {MAX_FILE} bytes each")
        yield "/".join(parts), text


async def generate_into(
    package: Package, out: Path, *, count: int, seed: int, kinds: Sequence[FaultKind]
) -> list[SweTask]:
    """Generate tasks in a Docker sandbox of their own and write them below `out`, a folder each.

    Raises:
        InvalidInput: as `generate`, or a task's folder is there already.
        SandboxError: there is no sandbox.
    """
    from agentrl.tools.sandbox.registry import create

    spec = SandboxSpec() if package.image is None else SandboxSpec(image=package.image)
    sandbox = await create(spec)
    try:
        tasks = await generate(package, sandbox, count=count, seed=seed, kinds=kinds)
    finally:
        await sandbox.close()
    for task in tasks:
        harbor.write(task, out / task.id)
    return tasks
