from todo.cli import main


def test_a_list(tmp_path, capsys):
    file = ["--file", str(tmp_path / "t.json")]
    assert main([*file, "add", "buy", "milk"]) == 0
    assert main([*file, "add", "bread"]) == 0
    assert main([*file, "done", "1"]) == 0
    capsys.readouterr()
    main([*file, "ls"])
    assert capsys.readouterr().out == "  2 [ ] bread\n"
    main([*file, "ls", "--all"])
    assert capsys.readouterr().out == "  1 [x] buy milk\n  2 [ ] bread\n"


def test_removing(tmp_path, capsys):
    file = ["--file", str(tmp_path / "t.json")]
    main([*file, "add", "milk"])
    assert main([*file, "rm", "1"]) == 0
    capsys.readouterr()
    main([*file, "ls", "--all"])
    assert capsys.readouterr().out == ""
