import json
import subprocess
import sys

from todo.cli import main


def run(tmp_path, *arguments):
    return main(["--file", str(tmp_path / "t.json"), *arguments])


def texts(tmp_path, capsys):
    capsys.readouterr()
    run(tmp_path, "ls")
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_numbers_are_not_given_out_twice(tmp_path, capsys):
    for words in ("add milk", "add bread", "add eggs", "rm 1", "add flour", "done 3"):
        assert run(tmp_path, *words.split()) == 0
    assert texts(tmp_path, capsys) == ["2 [ ] bread", "4 [ ] flour"]


def test_not_even_that_of_the_last_one(tmp_path, capsys):
    for words in ("add milk", "add bread", "rm 2", "add eggs"):
        run(tmp_path, *words.split())
    assert texts(tmp_path, capsys) == ["1 [ ] milk", "3 [ ] eggs"]


def test_an_older_file_is_read(tmp_path, capsys):
    old = {"tasks": [{"number": 7, "text": "old", "done": False}]}
    (tmp_path / "t.json").write_text(json.dumps(old))
    run(tmp_path, "add", "new")
    assert texts(tmp_path, capsys) == ["7 [ ] old", "8 [ ] new"]


def test_no_such_task(tmp_path, capsys):
    run(tmp_path, "add", "milk")
    capsys.readouterr()
    assert run(tmp_path, "done", "1", "99") == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err == "todo: no task 99\n"
    assert run(tmp_path, "rm", "5") == 1
    assert texts(tmp_path, capsys) == []


def test_the_exit_status_of_the_program(tmp_path):
    command = [sys.executable, "-m", "todo", "--file", str(tmp_path / "t.json"), "rm", "1"]
    assert subprocess.run(command, capture_output=True).returncode == 1
