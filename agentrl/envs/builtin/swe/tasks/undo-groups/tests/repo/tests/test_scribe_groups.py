from scribe import Document


def test_undoing_replacements_of_another_length():
    document = Document("one cat, two cats")
    document.replace_all("cat", "hamster")
    assert document.text == "one hamster, two hamsters"
    assert document.undo()
    assert document.text == "one cat, two cats"
    assert document.redo()
    assert document.text == "one hamster, two hamsters"


def test_a_group_is_one_step():
    document = Document("")
    with document.group():
        for letter in "xyz":
            document.insert(0, letter)
    assert document.text == "zyx"
    document.undo()
    assert document.text == ""
    assert not document.undo()


def test_groups_within_groups():
    document = Document("a a")
    with document.group():
        document.replace_all("a", "bb")
        document.insert(0, "<")
    document.undo()
    assert document.text == "a a"


def test_nothing_to_redo_after_something_new():
    document = Document("abc")
    document.insert(3, "d")
    document.undo()
    document.insert(0, "x")
    assert not document.redo()
    assert document.text == "xabc"
    document.undo()
    assert document.text == "abc"


def test_a_replacement_of_nothing_keeps_what_can_be_redone():
    document = Document("abc")
    document.insert(3, "d")
    document.undo()
    assert document.replace_all("zzz", "y") == 0
    assert document.redo()
    assert document.text == "abcd"
