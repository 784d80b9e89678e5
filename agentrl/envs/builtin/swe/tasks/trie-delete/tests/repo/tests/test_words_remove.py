import pytest

from words import Trie, complete


def test_longer_words_stay():
    trie = Trie(["car", "cart", "carbon"])
    assert trie.remove("car") is True
    assert complete(trie, "ca") == ["carbon", "cart"]


def test_shorter_words_stay():
    trie = Trie(["car", "cart"])
    trie.remove("cart")
    assert complete(trie, "") == ["car"]
    assert trie.size() == 3


def test_siblings_stay():
    trie = Trie(["cat", "car", "cut"])
    trie.remove("cat")
    assert complete(trie, "c") == ["car", "cut"]


@pytest.mark.parametrize("word", ["ca", "", "cars"])
def test_what_is_no_word_is_not_removed(word):
    trie = Trie(["car", "cart"])
    assert trie.remove(word) is False
    assert complete(trie, "") == ["car", "cart"]


def test_a_word_added_twice_is_gone_at_once():
    trie = Trie(["car", "car"])
    assert trie.remove("car") is True
    assert trie.remove("car") is False
    assert trie.size() == 0
