from chat import LineReader, Message, messages


def test_lines():
    reader = LineReader()
    assert reader.feed(b"one\ntwo\nthr") == ["one", "two"]
    assert reader.feed(b"ee\n") == ["three"]
    assert reader.finish() == []


def test_the_last_line():
    reader = LineReader()
    reader.feed(b"abc")
    assert reader.finish() == ["abc"]


def test_messages():
    found = list(messages([b"10:00 <ada> hi\n10:0", b"1 <bob> hello\nthere\n"]))
    assert found == [Message("10:00", "ada", "hi"), Message("10:01", "bob", "hello\nthere")]
