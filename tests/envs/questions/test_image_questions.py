"""Questions about images, in the forms of EasyR1's and VLM-R1's data."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.common import pictures
from agentrl.envs.builtin.questions.images import MARK, show_question
from agentrl.envs.check import check_env
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, InvalidInput


def png(colour: str = "red", size: tuple[int, int] = (8, 6)) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def easyr1(folder: Path) -> Path:
    """Rows of geometry questions, with the images inside of the file, or, in every second one, beside it."""
    import pyarrow
    import pyarrow.parquet as parquet

    colours = ["red", "green", "blue", "black"] * 5
    (folder / "figures").mkdir(exist_ok=True)
    rows = []
    for n, each in enumerate(colours):
        shown: dict[str, Any] = {"bytes": png(each, (8 + n, 6)), "path": None}
        if n % 2:
            (folder / "figures" / f"{n}.png").write_bytes(shown["bytes"])
            shown = {"bytes": None, "path": f"figures/{n}.png"}
        rows.append({"images": [shown], "problem": f"{MARK}Find x.", "answer": str(n)})
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "geometry.parquet")
    return folder / "geometry.parquet"


def vlm_r1(folder: Path, **change: Any) -> Path:
    """Rows of referring expressions, whose images are files beside it."""
    (folder / "coco").mkdir(exist_ok=True)
    rows = []
    for n in range(20):
        (folder / "coco" / f"{n}.png").write_bytes(png(size=(40 + n, 30)))
        said = {"from": "gpt", "value": [n, 2, n + 10, 12]}
        asked = {"from": "human", "value": f"{MARK}Where is the {n}th dog?"}
        rows.append({"id": n, "image": f"coco/{n}.png", "conversations": [asked, said]} | change)
    (folder / "refcoco.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "refcoco.jsonl"


def test_images_inside_of_a_file_and_beside_it_are_shown_where_the_question_says_so(tmp_path: Path) -> None:
    env = make("questions", path=str(easyr1(tmp_path)), instructions="{question} End with \\boxed{}.")
    train, held = env.tasks("train"), env.tasks("eval")
    assert len(train) + len(held) == 20
    assert held, "questions with the same words are others where their images are"
    for task in train:
        (message,) = env.reset(task)
        assert [part.type for part in message.content] == ["image_url", "text"]
        assert message.text == "Find x. End with \\boxed{}."
        assert pictures.picture(message.content[0].image_url["url"]).size == (8 + int(task["answers"][0]), 6)
    assert env.tasks("train")[0]["grading"] == "math"


def test_a_box_is_asked_for_where_the_answer_is_one(tmp_path: Path) -> None:
    env = make("questions", path=str(vlm_r1(tmp_path)))
    task = env.tasks("train")[0]
    assert task["grading"] == "box"
    assert task["images"] == ["coco/0.png"], "the task is the same wherever the data is"
    messages = env.reset(task)
    assert pictures.picture(messages[1].content[0].image_url["url"]).size == (40, 30)
    assert env.expert(messages).endswith(f'<answer>{{"bbox_2d": {task["answers"][0]}}}</answer>')


@pytest.mark.slow
def test_questions_about_boxes_pass_the_checks_of_environments(tmp_path: Path) -> None:
    """The same question about other images is another prompt, and naming every box is no answer."""
    assert check_env("questions", path=str(vlm_r1(tmp_path)), scored=4, tasks=1) == []


def test_images_before_a_question_that_says_nothing_about_them(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    kinds = [part.type for part in show_question("Which?", ["a.png", "a.png"], [tmp_path])]
    assert kinds == ["image_url", "image_url", "text"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": ["coco/0.png", "coco/1.png"]}, "says <image> 1 times, and the row has 2 images"),
        ({"image": {"bytes": b"GIF89a".hex().encode().decode()}}, None),
        ({"image": 7}, "expected a path, bytes"),
        ({"image": "data:image/svg+xml;base64,PHN2Zy8+"}, "an image can't be read"),
        ({"conversations": [{"from": "human", "value": "?"}]}, "must be a question and its answer"),
    ],
)
def test_a_row_whose_images_do_not_fit_is_refused_by_its_place(
    tmp_path: Path, change: dict[str, Any], why: str | None
) -> None:
    env = make("questions", path=str(vlm_r1(tmp_path, **change)))
    if why is None:  # a text may be a path: it is looked for when the question is asked
        with pytest.raises(InvalidInput, match="there is no image"):
            env.reset(env.tasks("train")[0])
        return
    with pytest.raises(ConfigError, match=rf"row 1: .*{why}"):
        env.tasks("train")
