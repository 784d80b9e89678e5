from words import Trie, complete


def test_membership():
    trie = Trie(["car", "cart"])
    assert "car" in trie
    assert "ca" not in trie


def test_completion():
    trie = Trie(["car", "cart", "cat", "dog", "cat"])
    assert complete(trie, "ca") == ["cat", "car", "cart"]
    assert complete(trie, "x") == []


def test_removing_the_only_word():
    trie = Trie(["a"])
    assert trie.remove("a") is True
    assert trie.size() == 0


def test_removing_a_word_with_another_beginning():
    trie = Trie(["dog"])
    assert trie.remove("cat") is False
    assert "dog" in trie
