import asyncio
import unittest

from batch import Loader


class BatchTest(unittest.TestCase):
    def setUp(self):
        self.calls = []

    async def fetch(self, keys):
        self.calls.append(list(keys))
        return {key: key * 2 for key in keys}

    def test_one_call_for_all(self):
        async def main():
            return await Loader(self.fetch).get_many([1, 2, 3])

        self.assertEqual(asyncio.run(main()), [2, 4, 6])
        self.assertEqual(self.calls, [[1, 2, 3]])

    def test_values_are_remembered(self):
        async def main():
            loader = Loader(self.fetch)
            await loader.get(1)
            await loader.get(1)
            loader.forget(1)
            return await loader.get(1)

        self.assertEqual(asyncio.run(main()), 2)
        self.assertEqual(self.calls, [[1], [1]])

    def test_pieces(self):
        async def main():
            return await Loader(self.fetch, size=2).get_many("abc")

        self.assertEqual(asyncio.run(main()), ["aa", "bb", "cc"])
        self.assertEqual(self.calls, [["a", "b"], ["c"]])
