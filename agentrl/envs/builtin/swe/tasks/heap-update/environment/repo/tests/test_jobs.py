import unittest

from jobs import JobQueue


class JobsTest(unittest.TestCase):
    def test_the_most_urgent_first(self):
        queue = JobQueue()
        for name, priority in (("c", 3), ("a", 1), ("b", 2)):
            queue.add(name, priority)
        self.assertEqual(list(queue.drain()), ["a", "b", "c"])
        self.assertIsNone(queue.next())

    def test_equals_in_order(self):
        queue = JobQueue()
        for name in "xyz":
            queue.add(name, 5)
        self.assertEqual(list(queue.drain()), ["x", "y", "z"])

    def test_cancelling(self):
        queue = JobQueue()
        for priority, name in enumerate("abc"):
            queue.add(name, priority)
        self.assertTrue(queue.cancel("b"))
        self.assertFalse(queue.cancel("b"))
        self.assertEqual(list(queue.drain()), ["a", "c"])

    def test_a_later_turn(self):
        queue = JobQueue()
        for priority, name in enumerate("abc"):
            queue.add(name, priority)
        queue.reprioritise("a", 9)
        self.assertEqual(list(queue.drain()), ["b", "c", "a"])
