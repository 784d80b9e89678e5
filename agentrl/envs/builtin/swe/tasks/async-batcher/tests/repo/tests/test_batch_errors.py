import asyncio
import unittest

from batch import Loader


def run(work):
    async def main():
        task = asyncio.ensure_future(work())
        done, _ = await asyncio.wait({task}, timeout=3)
        assert done, "it hangs"
        return task.result()

    return asyncio.run(main())


class ErrorsTest(unittest.TestCase):
    def setUp(self):
        self.calls = []
        self.fail = True

    async def fetch(self, keys):
        self.calls.append(list(keys))
        if self.fail and "bad" in keys:
            raise OSError("down")
        return {key: key.upper() for key in keys if key != "unknown"}

    def test_everybody_gets_the_error(self):
        async def work():
            loader = Loader(self.fetch)
            return await asyncio.gather(*(loader.get(key) for key in ("a", "bad", "c")), return_exceptions=True)

        self.assertEqual([type(found) for found in run(work)], [OSError, OSError, OSError])

    def test_the_next_piece_is_fetched_all_the_same(self):
        async def work():
            loader = Loader(self.fetch, size=1)
            return await asyncio.gather(*(loader.get(key) for key in ("bad", "c")), return_exceptions=True)

        found = run(work)
        self.assertIsInstance(found[0], OSError)
        self.assertEqual(found[1], "C")

    def test_an_unknown_key_concerns_nobody_else(self):
        async def work():
            loader = Loader(self.fetch)
            return await asyncio.gather(*(loader.get(key) for key in ("a", "unknown", "c")), return_exceptions=True)

        found = run(work)
        self.assertEqual((found[0], found[2]), ("A", "C"))
        self.assertIsInstance(found[1], KeyError)

    def test_failures_are_not_remembered(self):
        async def work():
            loader = Loader(self.fetch)
            try:
                await loader.get("bad")
            except OSError:
                self.fail = False
            return await loader.get("bad")

        self.assertEqual(run(work), "BAD")
        self.assertEqual(self.calls, [["bad"], ["bad"]])

    def test_a_key_asked_for_twice_is_fetched_once(self):
        async def work():
            return await Loader(self.fetch).get_many(["a", "b", "a"])

        self.assertEqual(run(work), ["A", "B", "A"])
        self.assertEqual(self.calls, [["a", "b"]])

    def test_one_who_gives_up_spoils_nothing(self):
        async def work():
            loader = Loader(self.fetch)
            first = asyncio.ensure_future(loader.get("a"))
            second = asyncio.ensure_future(loader.get("a"))
            await asyncio.sleep(0)
            first.cancel()
            return await second

        self.assertEqual(run(work), "A")
