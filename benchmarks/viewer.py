"""How long the viewer's list of sessions takes to open in Chromium, by the number of sessions in the run.

    python -m benchmarks.viewer [sessions, 100,000 by default]

A run of `SMALL` sessions is the baseline. Times are medians of `ROUNDS` in milliseconds of wall clock,
from the request of the page until its first 100 rows can be read. Needs Debian's package chromium and the extra `dev`.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentrl.sessions.store.store import Store
from benchmarks.machine import machine
from benchmarks.store import BATCH, made
from tests.viewer.conftest import viewing

ROUNDS = 5
SMALL = 200
SCROLLED = 20
"""Pages of 100 rows."""
VIEWS = {
    "the list as it is": "",
    "worst scores first": "?sort=score",
    "most tokens first (no index)": "?sort=tokens&descending=1",
    "one status": "?status=completed",
}


def write(folder: Path, count: int) -> None:
    """A run of so many sessions."""
    folder.mkdir()
    (folder / "config.yaml").write_text("env: {name: calculator}\nsteps: 10\n")
    rng = random.Random(0)
    with Store(folder / "sessions.db") as store:
        for start in range(0, count, BATCH):
            with store.batch():
                for number in range(start, min(count, start + BATCH)):
                    store.save(made(number, rng))


def opened(page: Any, address: str) -> float:
    """Milliseconds until the first 100 rows can be read."""
    page.goto("about:blank")
    began = time.perf_counter()
    page.goto(address)
    page.locator("tbody tr").nth(99).wait_for()
    return 1e3 * (time.perf_counter() - began)


def scrolled(page: Any) -> float:
    """Milliseconds for each further page of rows, scrolled to one after the other."""
    began = time.perf_counter()
    for pages in range(2, SCROLLED + 2):
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.locator("tbody tr").nth(100 * pages - 1).wait_for(state="attached")
    return 1e3 * (time.perf_counter() - began) / SCROLLED


def main() -> None:
    """Open both runs' lists in turn."""
    from playwright.sync_api import sync_playwright

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(machine())
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        sizes = {"small": SMALL, "large": count}
        for run, size in sizes.items():
            write(folder / run, size)
        with viewing(folder) as url:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = chromium.new_page()
            print(f"{'milliseconds':32} {SMALL:>10,} {count:>10,}   ratio")
            for view, asked in VIEWS.items():
                times: dict[str, list[float]] = {run: [] for run in sizes}
                for _ in range(ROUNDS):
                    for run in sizes:
                        times[run].append(opened(page, f"{url}/#/run/{run}/sessions{asked}"))
                small, large = (statistics.median(times[run]) for run in sizes)
                print(f"{view:32} {small:10.0f} {large:10.0f} {large / small:7.1f}")
            opened(page, f"{url}/#/run/large/sessions")
            page.wait_for_selector("main[data-shown]")
            print(f"{'a further page, scrolled to':32} {'':10} {scrolled(page):10.0f}")
            chromium.close()


if __name__ == "__main__":
    main()
