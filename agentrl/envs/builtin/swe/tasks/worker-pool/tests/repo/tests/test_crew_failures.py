import threading
import unittest

from crew import Failure, Pool


def within(function, seconds=5):
    """A function's result, or an error where it takes too long."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise AssertionError("it hangs or failed")
    return found[0]


class FailuresTest(unittest.TestCase):
    def test_a_failure_is_reported_at_its_place(self):
        pool = Pool(workers=1)
        pool.submit(int, "1")
        pool.submit(int, "x")
        pool.submit(int, "3")
        one, two, three = within(pool.results)
        self.assertEqual((one, three), (1, 3))
        self.assertIsInstance(two, Failure)
        self.assertIsInstance(two.error, ValueError)

    def test_every_worker_survives(self):
        pool = Pool(workers=2)
        for _ in range(6):
            pool.submit(int, "x")
        pool.submit(int, "7")
        self.assertEqual(within(pool.results)[-1], 7)

    def test_results_are_in_the_order_of_submission(self):
        pool = Pool(workers=2)
        gate = threading.Event()
        pool.submit(lambda: gate.wait(5) and "slow")
        pool.submit(lambda: gate.set() or "quick")
        self.assertEqual(within(pool.results), ["slow", "quick"])

    def test_closing_ends_all_workers(self):
        pool = Pool(workers=4)
        pool.submit(str, 1)
        within(pool.results)
        self.assertTrue(within(lambda: pool.close() or True))
