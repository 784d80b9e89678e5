"""The pictures of docs/viewer.md: `python -m tests.viewer.screenshots`, with Debian's package chromium.

They are of two written runs and of one that is trained for it, a turn of which is replayed.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from agentrl.viewer.notes import RUN, NoteChange, Notes
from agentrl.viewer.replay_process import Replays
from tests.viewer.conftest import viewing
from tests.viewer.recorded import write_run
from tests.viewer.trained import train_run

DOCS = Path(__file__).resolve().parents[2] / "docs" / "viewer"
WIDTH = 1100
COLOURS = 128
REPLAY_MS = 300_000


def write(folder: Path) -> None:
    """The runs, with notes."""
    train_run(folder / "doors")
    fast = write_run(folder / "calculator")
    write_run(folder / "calculator-slow", lr=4e-4, hostile=False)
    Notes(fast).put(RUN, NoteChange(text="the learning rate to keep", tags=("paper",)))
    for number in (20, 24):
        Notes(fast).put(f"train-{number}.0-1", NoteChange(text="answers before the story ends", tags=("hasty",)))


class Camera:
    """Opens views and saves what they show."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url

    def open(self, view: str, theme: str = "light") -> None:
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/{view}")
        self.page.wait_for_selector("main[data-shown]")
        self.page.evaluate(
            "theme => { document.documentElement.dataset.theme = theme; dispatchEvent(new Event('themed')) }", theme
        )

    def save(self, name: str, height: int) -> None:
        self.page.set_viewport_size({"width": WIDTH, "height": height})
        self.page.wait_for_timeout(500)
        picture = Image.open(BytesIO(self.page.screenshot())).convert("RGB").quantize(COLOURS)
        picture.save(DOCS / f"{name}.png", optimize=True)


def main() -> None:
    """Take them all."""
    from playwright.sync_api import sync_playwright

    runs = Path("runs")  # the page shows it
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), contextlib.closing(Replays()) as replays:
        runs.mkdir()
        write(runs)
        with viewing(runs, replays=replays) as url, sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            shoot(Camera(chromium.new_page(viewport={"width": WIDTH, "height": 900}), url))
            chromium.close()


def shoot(camera: Camera) -> None:
    """One view after the other."""
    page = camera.page
    camera.open("#/")
    camera.save("runs", 370)
    camera.open("#/compare?run=calculator&run=calculator-slow")
    page.locator('[data-chart="reward/mean"] polyline.line').nth(1).wait_for()
    camera.save("curves", 440)
    camera.open("#/run/calculator/sessions?step=10..20")
    page.locator("tbody tr").nth(5).wait_for()
    camera.save("sessions", 560)
    camera.open("#/run/calculator/timeline?from=60&to=120")
    camera.save("timeline", 480)
    camera.open("#/run/doors/session/train-40.0-0")
    page.get_by_role("button", name="Replay turn 1").click()
    page.get_by_label("Replays", exact=True).first.fill("3")
    page.get_by_role("button", name="Start").click()
    page.locator(".progress .badge").filter(has_not_text="under way").wait_for(timeout=REPLAY_MS)
    page.get_by_role("treeitem").filter(has_text="replay, seed").first.wait_for()
    page.get_by_role("treeitem").filter(has_text="replay, seed").first.click()
    page.evaluate("scrollTo(0, document.querySelector('.replays').offsetTop - 60)")
    camera.save("replay", 900)
    camera.open("#/run/doors/session/train-7.0-0?colour=difference", "dark")
    page.get_by_role("button", name="Tokens of message 1").click()
    page.locator(".token").last.hover()
    camera.save("session", 900)


if __name__ == "__main__":
    main()
