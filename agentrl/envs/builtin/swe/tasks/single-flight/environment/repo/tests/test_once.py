import threading

from once import OnceCache


def test_values_are_loaded_once():
    cache = OnceCache(str.upper)
    assert [cache.get("a"), cache.get("a"), cache.get("b")] == ["A", "A", "B"]
    assert cache.loads == 2


def test_forgetting():
    cache = OnceCache(str.upper)
    cache.get("a")
    assert cache.forget("a")
    assert not cache.forget("a")


def test_many_at_the_same_time():
    gate = threading.Event()
    cache = OnceCache(lambda key: gate.wait(5) and key)
    threads = [threading.Thread(target=cache.get, args=("k",), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(5)
    assert cache.loads == 1
