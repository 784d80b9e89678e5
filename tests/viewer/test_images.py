"""Images of sessions in the viewer: pixels and nothing else, whatever is in their files."""

from __future__ import annotations

import base64
import io
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.store.export import to_jsonl, to_parquet
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.display.pictures import transcripts
from agentrl.types import Group, Message, Session, Status, Task
from tests.sessions.exported import from_jsonl
from tests.viewer.recorded import write_run
from tests.viewer.test_app import asked, client

SCRIPT = b"<html><script>alert(1)</script></html>"


def picture(kind: str = "PNG", colour: Any = (10, 20, 30), size: tuple[int, int] = (5, 3)) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, kind)
    return out.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def seen(name: str, *urls: str) -> Session:
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in urls]
    session = Session(name, Task(id=name), status=Status.COMPLETED)
    tree.add(session, None, Message.model_validate({"role": "user", "content": ["Look:", *parts]}), [1])
    return session


HOSTILE = {
    "a page behind an image": (url(picture() + SCRIPT), True),
    "an image that says it is another": (url(picture("GIF"), "image/jpeg"), True),
    "a page that says it is an image": (url(SCRIPT), False),
    "a drawing with a script": (url(b"<svg onload='alert(1)'/>", "image/svg+xml"), False),
    "half an image": (url(picture()[:30]), False),
    "an image elsewhere": ("https://elsewhere.example/a.png", False),
    "a script": ("javascript:alert(1)", False),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", steps=1, groups=1, hostile=False)
    with Store(folder / "sessions.db") as store:
        store.save(seen("hostile", *(image for image, _ in HOSTILE.values())))
    return folder


@pytest.mark.slow
async def test_an_image_is_sent_as_its_pixels_and_what_is_none_is_refused(run: Path) -> None:
    from PIL import Image

    async with client(run.parent) as viewer:
        for place, (name, (_, shown)) in enumerate(HOSTILE.items()):
            given = {"run": "run", "id": "hostile", "node": 0, "image": place}
            answer = await viewer.get("/api/image", params=given)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "script" not in answer.text.lower() or not shown, name
            if not shown:
                assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json"), name
                continue
            assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png"), name
            with Image.open(io.BytesIO(answer.content)) as image:
                assert (image.format, image.size, image.getpixel((0, 0))) == ("PNG", (5, 3), (10, 20, 30)), name
        assert (await viewer.get("/api/image", params=given | {"image": 99})).status_code == 400


async def test_a_message_names_its_images_and_has_none_of_their_bytes(run: Path) -> None:
    (message,) = await asked(run.parent, "messages", run="run", id="hostile", node=0)
    images = [part["image_url"] for part in message["message"]["content"][1:]]
    assert images[:3] == [{"place": 0}, {"place": 1}, {"place": 2}]
    assert images[5] == {"url": "https://elsewhere.example/a.png"}
    (node,) = (await asked(run.parent, "session", run="run", id="hostile"))["nodes"]
    assert node["preview"].startswith("Look: [image] [image]")


async def test_exports_and_copies_have_the_images_themselves(run: Path, tmp_path: Path) -> None:
    first = next(iter(HOSTILE.values()))[0]
    body = json.loads(await asked(run.parent, "copy", run="run", id="hostile", node=0, **{"as": "openai"}))
    assert body["messages"][0]["content"][1]["image_url"]["url"] == first
    with Store(run / "sessions.db") as store:
        session = store.load("hostile")
    assert to_jsonl([session], tmp_path / "out.jsonl") == 1
    (again,) = from_jsonl(tmp_path / "out.jsonl")
    assert again.nodes[0].message == session.nodes[0].message
    assert again.nodes[0].message.images == [image for image, _ in HOSTILE.values()]
    assert to_parquet([session], tmp_path / "out.parquet") == 1


@pytest.mark.slow
def test_a_store_of_ten_thousand_images_holds_each_once(tmp_path: Path) -> None:
    """Groups of sessions show the same images; 50 distinct ones stand here for many."""
    images = [url(picture(colour=(number, 0, 0))) for number in range(50)]
    with Store(tmp_path / "sessions.db") as store, store.batch():
        for number in range(1000):
            store.save(seen(f"{number}", *(images[(number + place) % 50] for place in range(10))))
    with Store(tmp_path / "sessions.db") as store:
        assert store.load("999").nodes[0].message.images == [images[(999 + place) % 50] for place in range(10)]
        for number in range(1000):
            if number % 50:
                store.delete(f"{number}")
        left = sqlite3.connect(tmp_path / "sessions.db").execute("SELECT count(*), sum(uses) FROM blobs").fetchone()
        assert left == (10, 200), "of the sessions that are left: 20, of the same ten images"


def test_transcripts_show_images_as_their_pixels_beside_them_and_say_what_can_not_be_shown(tmp_path: Path) -> None:
    from PIL import Image

    file = tmp_path / "transcripts" / "before.md"
    session = seen("hostile", *(image for image, _ in HOSTILE.values()))
    transcripts(file, "hostile", [Group("hostile", session.task, [session])])
    text = file.read_text()
    assert text.count("(an image that can't be shown: ") == sum(not shown for _, shown in HOSTILE.values())
    named = re.findall(r"!\[image\]\((images/\w+\.png)\)", text)
    assert len(named) == sum(shown for _, shown in HOSTILE.values())
    for name in named:
        assert b"script" not in (file.parent / name).read_bytes()
        with Image.open(file.parent / name) as image:
            assert (image.format, image.size) == ("PNG", (5, 3))
