"""The node below an agent program dies before, within or after a turn of the program's.

    python -m benchmarks.program_kills                        # each moment once
    python -m benchmarks.program_kills --moments within --nth 1 5 9

The run is that of `benchmarks.cluster_kills`, played by `examples/openai_agent`. The program itself kills the raylet of
the node that it is on and its own worker, at the worker's call number `nth`: a worker alone may outlive its raylet for
longer than so small a run takes. The run has to go on by itself, with the sessions (token for token), losses and
weights of the run on one machine without faults, bit for bit, each group trained once, and what the node had generated
again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger
from benchmarks.cluster_kills import RAY, WORDS, nodes, pid, train
from benchmarks.crash_points import difference
from benchmarks.machine import machine

MOMENTS = ("before", "within", "after")
MORE = ("warm_start.steps=80", "warm_start.demos=128", "warm_start.batch=16", "env.max_steps=4")
"""A policy that gets some rewards, and calls the program's tool: else there is nothing to learn, and one turn."""
PROGRAM = """
import asyncio, os, signal
from pathlib import Path
from agentrl.common.imports import load

solve = load({solver!r}, "an agent")
calls = 0


def kill(moment):
    if moment != {moment!r} or calls < {nth} or Path({mark!r}).exists():
        return
    log = Path(os.readlink("/proc/self/fd/1"))  # the worker's, which begins with its node's name
    below = [pid for node, pid in {raylets!r}.items() if f"({{node}})" in log.read_text()[:200]]
    if not below:
        return
    Path({mark!r}).write_text(f"{{moment}} call {{calls}} of its worker")
    os.kill(below[0], signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


async def agent(task, client):
    create = client.chat.completions.create

    async def counted(**request):
        global calls
        calls += 1
        kill("before")
        later = asyncio.get_running_loop().call_later(0.03, kill, "within")
        try:
            reply = await create(**request)
        finally:
            later.cancel()
        kill("after")
        return reply

    client.chat.completions.create = counted
    return await solve(task, client)
"""


def program(folder: Path, raylets: dict[str, int], moment: str = "", nth: int = 0) -> str:
    """The file of a program that kills its node at a moment, as a setting."""
    file, solver = folder / "agent.py", Path("examples/openai_agent/agent.py").absolute()
    values: dict[str, Any] = {"raylets": raylets, "moment": moment, "nth": nth, "mark": str(folder / "mark")}
    file.write_text(PROGRAM.format(solver=f"{solver}:agent", **values))
    return f"agent={file}:agent"


def lose(reference: Path, folder: Path, moment: str, nth: int) -> str:
    """Have a node killed at a moment; what is wrong with how the run ended."""
    folder.mkdir()
    run, mark = folder / "run", folder / "mark"
    with nodes() as cluster:
        raylets = {node.node_id[-6:]: pid(node) for node in cluster.list_all_nodes()[1:]}
        words = (*without_repeats(), program(folder, raylets, moment, nth), *RAY)
        code, said = train((*words, f"cluster.address={cluster.address}", f"run_dir={run}"), folder / "run.log")
    wrong = f"exit code {code}: {said[-1500:]}" if code else difference(reference, run) or "; ".join(ledger.faults(run))
    wrong = wrong or ("" if mark.exists() else "the node was not killed")
    again = 0
    if not code:
        with Store(run / "sessions.db", read_only=True) as store:
            again = sum(session.attempt > 0 for session in store.sessions(phase="train"))
        wrong = wrong or ("" if again else "no session was generated again")
    tried = mark.read_text() if mark.exists() else moment
    print(f"{tried}: {wrong or 'the same'}; {again} sessions were generated again", flush=True)
    return wrong


def without_repeats() -> tuple[str, ...]:
    """The settings of both, each name once."""
    return tuple({word.partition("=")[0]: word for word in (*WORDS, *MORE)}.values())


def main() -> None:
    """Try each moment that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", nargs="+", choices=MOMENTS, default=MOMENTS)
    parser.add_argument("--nth", type=int, nargs="+", default=[5])
    asked = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        words = (*without_repeats(), program(folder, {}), f"run_dir={folder / 'reference'}")
        code, said = train(words, folder / "reference.log")
        if code:
            sys.exit(f"the run without faults ended with {code}:\n{said[-3000:]}")
        print(said.strip().splitlines()[-1])
        tries = [(moment, nth) for moment in asked.moments for nth in asked.nth]
        wrong = [lose(folder / "reference", folder / f"{moment}-{nth}", moment, nth) for moment, nth in tries]
        print(f"{wrong.count('')} of {len(wrong)} ended as they should, {time.monotonic() - began:.0f} s; {machine()}")
    sys.exit(any(wrong))


if __name__ == "__main__":
    main()
