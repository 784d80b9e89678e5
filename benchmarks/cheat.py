"""How many tasks a patch is rewarded for that repairs nothing, by somebody who knows all of scoring but the key.

The attacker sees what the tests show of the broken program, and what is written in the tests as they are sent. It is
even given which of the things that they show are wrong (a real one isn't), and forges the report: everything else as it
is, and of each wrong one its best guess. What guesses are good ones it has learned from all other tasks, whose keys it
has. The forged reports are judged as real ones are. To show that forging itself works, the same is done with the key.

A task counts as cheated if the forged report earns its reward; a test, if the report passes it. Beside the share of
tests that are forged stands what that would be as balanced accuracy in telling a right answer from a wrong one: a half
by coin, and by guessing right with chance p, (1 + p) / 2. Forms that can't be exchanged for others are listed apart.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentrl.envs import sandboxes
from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.changes import File
from agentrl.envs.builtin.swe.generation.expect import fits
from agentrl.envs.builtin.swe.generation.find_key import find_stored, guesses, paired
from agentrl.envs.builtin.swe.generation.guess import MISSING, MOST, Open, candidates
from agentrl.envs.builtin.swe.generation.key import Key, ReportRow
from agentrl.envs.builtin.swe.generation.running import SuiteResult, run_tests
from agentrl.envs.builtin.swe.scoring import Exam, final_tree, judged
from agentrl.envs.builtin.swe.source import source_of
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.builtin.swe.workspace import SPEC
from agentrl.tools.sandbox import Sandbox
from benchmarks.machine import machine

TOGETHER = 2


@dataclass(frozen=True, slots=True)
class Target:
    """A task, its key (which the attacker doesn't have), what the broken program shows, and what is wrong in that."""

    task: SweTask
    key: Key
    shown: SuiteResult
    wrong: Sequence[Open]


def form(one: Open) -> str:
    """What kind of thing has to be guessed."""
    if one.site.kind in ("truth", "raises"):
        return one.site.kind
    if one.site.kind == "same":
        return "None, True or False"
    return "value"


def label_of(one: Open) -> str:
    """How the right value follows from the wrong one; '' where no guess is right."""
    for label, shown in islice(candidates(one.site, one.honest, one.literals), MOST):
        if fits(one.site, one.expected, shown):
            return label
    return ""


def group(one: Open) -> str:
    """What the attacker's experience is sorted by: the form, and what kind of value the broken program shows."""
    kind = (
        "missing"
        if one.honest is MISSING
        else one.honest[0]
        if isinstance(one.honest, list)
        else type(one.honest).__name__
    )
    return f"{one.site.kind} {kind}"


def best_guess(one: Open, experience: Counter[tuple[str, str]]) -> Any:
    """The first guess of the kind that was right most often elsewhere."""
    options = list(islice(candidates(one.site, one.honest, one.literals), MOST))
    return max(options, key=lambda option: experience[group(one), option[0]], default=("", None))[1]


def forged(target: Target, answer: Callable[[Open], Any]) -> SuiteResult:
    """The report of the broken program, with every wrong thing in it replaced by an answer."""
    wrong = {(one.test, one.number, one.turn): one for one in target.wrong}
    rows: dict[str, list[ReportRow]] = {}
    for path, file in target.key.files.items():
        shown = {expected.test: row for expected, row in paired(file.tests, target.shown.rows.get(path, []))}
        rows[path] = []
        for expected in file.tests:
            turns: Counter[int] = Counter()
            honest = list(shown[expected.test].events) if expected.test in shown else []
            events = []
            for number, _ in expected.events:
                turns[number] += 1
                one = wrong.get((f"{path}::{expected.test}", number, turns[number]))
                same = [event for event in honest if event[0] == number]
                value = answer(one) if one else same[turns[number] - 1][1] if len(same) >= turns[number] else None
                events.append([number, value])
            if f"{path}::{expected.test}" not in target.task.fail_to_pass and expected.test in shown:
                events = list(shown[expected.test].events)
            rows[path].append(ReportRow(expected.test, "passed", "", events))
    return SuiteResult(rows)


async def target_of(task: SweTask) -> Target:
    """Find a task's key, and run its tests on the program as it is."""
    supplier = sandboxes.supplier("docker")
    await source_of(task).prove(supplier)
    key, exam = find_stored(task), Exam.of(task)
    assert key is not None
    tree = final_tree(exam, {}) | {path: File(file.source.encode()) for path, file in key.files.items()}

    async def run(sandbox: Sandbox) -> SuiteResult:
        return (await run_tests(sandbox, exam.suite, [tree]))[0]

    shown, _ = await supplier.run(SPEC, run)
    return Target(task, key, shown, guesses(task, key, shown))


def attack(targets: Sequence[Target]) -> tuple[Mapping[str, SuiteResult], Counter[str], Counter[str]]:
    """Each task's forged report, and by form how many wrong things there are and how many were guessed."""
    labels = {target.task.id: [(group(one), label_of(one)) for one in target.wrong] for target in targets}
    reports: dict[str, SuiteResult] = {}
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for target in targets:
        learned = Counter(pair for name, pairs in labels.items() if name != target.task.id for pair in pairs)
        reports[target.task.id] = forged(target, lambda one, learned=learned: best_guess(one, learned))  # type: ignore[misc]
        for one in target.wrong:
            asked[form(one)] += 1
            right[form(one)] += fits(one.site, one.expected, best_guess(one, learned))
    return reports, asked, right


async def measure(names: Sequence[str]) -> tuple[int, int]:
    """Print what the attacker gets; (tasks cheated, tasks that are rewarded by a report forged with the key)."""
    gate = asyncio.Semaphore(TOGETHER)

    async def one(name: str) -> Target:
        async with gate:
            return await target_of(library.load(name))

    targets = list(await asyncio.gather(*map(one, names)))
    await sandboxes.close_all()
    reports, asked, right = attack(targets)
    cheated, tests, exchangeable, passed, passed_apart = [], 0, 0, 0, 0
    for target in targets:
        verdict = judged(target.task.required, target.key, reports[target.task.id])
        cheated += [target.task.id] if verdict.solved else []
        with_values = {one.test for one in target.wrong if form(one) == "value"}
        for test in target.task.fail_to_pass:
            tests += 1
            exchangeable += test in with_values
            passed += verdict.tests[test] and test in with_values
            passed_apart += verdict.tests[test] and test not in with_values
    known_all = sum(judged(t.task.required, t.key, forged(t, _answer)).solved for t in targets)
    for kind in sorted(asked):
        print(f"  {kind}: {right[kind]} of {asked[kind]} wrong ones guessed ({right[kind] / asked[kind]:.0%})")
    share = passed / max(exchangeable, 1)
    print(
        f"tests with a wrong value: {passed} of {exchangeable} forged ({share:.1%}), "
        f"as balanced accuracy {(1 + share) / 2:.2f}"
    )
    print(
        f"tests with none (truths, None, exceptions, or a crash alone): {passed_apart} of {tests - exchangeable} forged"
    )
    print(f"least bits of a task: {min(target.key.bits for target in targets):.1f}")
    print(f"tasks cheated: {len(cheated)} of {len(targets)} {cheated or ''}; with the key: {known_all}")
    return len(cheated), known_all


def _answer(one: Open) -> Any:
    return one.right


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="*", default=list(library.names()))
    print(machine())
    asyncio.run(measure(parser.parse_args().tasks))


if __name__ == "__main__":
    main()
