import unittest

from stash import Cache


class WritesTest(unittest.TestCase):
    def test_writing_is_use(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("a", 3)
        cache.put("c", 4)
        self.assertEqual(cache.keys(), ["a", "c"])
        self.assertEqual(cache.get("a"), 3)

    def test_overwriting_evicts_nothing(self):
        gone = []
        cache = Cache(2, on_evict=lambda key, value: gone.append(key))
        for key in "abab":
            cache.put(key, 0)
        self.assertEqual(gone, [])

    def test_shrinking_keeps_the_recent_ones(self):
        gone = []
        cache = Cache(4, on_evict=lambda key, value: gone.append((key, value)))
        for number, key in enumerate("abcd"):
            cache.put(key, number)
        cache.get("a")
        cache.resize(2)
        self.assertEqual(cache.keys(), ["d", "a"])
        self.assertEqual(gone, [("b", 1), ("c", 2)])
        self.assertEqual(cache.stats.evictions, 2)

    def test_none_is_a_value(self):
        cache = Cache(1)
        cache.put("a", None)
        self.assertIsNone(cache.get("a", "default"))
