import threading

import pytest

from once import OnceCache


def start(function):
    """Run in a thread; (thread, where its result or its error will be)."""
    found = []

    def work():
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, found


def test_a_later_caller_tries_again():
    attempts = []

    def load(key):
        attempts.append(key)
        if len(attempts) % 2:
            raise ValueError("every other time")
        return key * len(attempts)

    cache = OnceCache(load)
    with pytest.raises(ValueError):
        cache.get("k")
    thread, found = start(lambda: cache.get("k"))
    thread.join(5)
    with pytest.raises(ValueError):
        cache.get("l")
    thread, others = start(lambda: [cache.get("l"), cache.get("k")])
    thread.join(5)
    assert (found, others) == (["kk"], [["llll", "kk"]])
    assert cache.loads == 4


def test_those_who_wait_see_the_same_error():
    inside, gate = threading.Event(), threading.Event()

    def load(key):
        inside.set()
        gate.wait(10)
        raise LookupError(key)

    cache = OnceCache(load)
    first = start(lambda: cache.get("k"))
    assert inside.wait(5)
    others = [start(lambda: cache.get("k")) for _ in range(3)]
    for thread, _ in others:
        thread.join(0.2)
    gate.set()
    seen = []
    for thread, found in (first, *others):
        thread.join(5)
        seen += [f"{type(error).__name__} of {error}" for error in found]
    assert seen == ["LookupError of k", "LookupError of k", "LookupError of k", "LookupError of k"]


def test_none_is_a_value():
    cache = OnceCache(lambda key: None)
    assert cache.get("k") is None
    assert cache.get("k") is None
    assert cache.loads == 1
    assert cache.forget("k")
    assert [cache.get("k"), cache.get("l"), cache.get("k"), cache.loads] == [None, None, None, 3]


def test_other_keys_are_not_held_up():
    cache = OnceCache(lambda key: 1 // key)
    with pytest.raises(ZeroDivisionError):
        cache.get(0)
    assert cache.get(1) == 1
