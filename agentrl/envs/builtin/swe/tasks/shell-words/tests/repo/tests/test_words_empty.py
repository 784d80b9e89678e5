from words import join, split


def test_empty_words():
    assert split("grep '' file") == ["grep", "", "file"]
    assert split('"" x') == ["", "x"]
    assert split("x ''") == ["x", ""]


def test_nothing():
    assert split("") == []
    assert split("   ") == []


def test_backslashes_in_double_quotes():
    assert split(r'"C:\temp\new"') == [r"C:\temp\new"]
    assert split(r'"a\"b\\c\$d"') == [r'a"b\c$d']


def test_a_mark_after_an_empty_word_is_no_comment():
    assert split("''#x") == ["#x"]


def test_there_and_back():
    words = ["it's", "", "'", "a\\b", '"', "''", "x y", "#", "$HOME", "\\'"]
    assert split(join(words)) == words


def test_joining_an_apostrophe():
    assert split(join(["don't"])) == ["don't"]
