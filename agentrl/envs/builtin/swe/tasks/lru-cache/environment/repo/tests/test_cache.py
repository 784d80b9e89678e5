import unittest

from stash import Cache


class CacheTest(unittest.TestCase):
    def test_the_oldest_goes(self):
        cache = Cache(2)
        for key in "abc":
            cache.put(key, key.upper())
        self.assertEqual(cache.keys(), ["b", "c"])
        self.assertEqual(cache.get("b"), "B")

    def test_reading_is_use(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        self.assertEqual(cache.keys(), ["a", "c"])

    def test_statistics(self):
        cache = Cache(1)
        cache.put("a", 1)
        cache.get("a")
        cache.get("b", 0)
        cache.put("c", 2)
        self.assertEqual((cache.stats.hits, cache.stats.misses, cache.stats.evictions), (1, 1, 1))
        self.assertEqual(cache.stats.rate, 0.5)
