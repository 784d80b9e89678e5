"""Suggestions for a word that has been begun."""


def complete(trie, prefix, limit=5):
    """The words with a prefix: most frequent first, then by alphabet."""
    found = sorted(trie.words(prefix), key=lambda item: (-item[1], item[0]))
    return [word for word, _ in found[:limit]]
