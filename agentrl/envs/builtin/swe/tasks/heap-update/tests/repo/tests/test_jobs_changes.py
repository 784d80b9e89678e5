import unittest

from jobs import JobQueue


def filled(priorities):
    queue = JobQueue()
    for priority in priorities:
        queue.add(priority, priority)
    return queue


class ChangesTest(unittest.TestCase):
    def test_cancelling_in_another_branch(self):
        queue = filled([7, 12, 10, 1, 8, 3, 6])
        queue.cancel(12)
        self.assertEqual(list(queue.drain()), [1, 3, 6, 7, 8, 10])

    def test_an_earlier_turn(self):
        queue = filled([1, 2, 3, 4, 5])
        queue.reprioritise(5, 0)
        self.assertEqual(list(queue.drain()), [5, 1, 2, 3, 4])

    def test_cancelling_the_last(self):
        queue = filled([1, 2, 3])
        queue.cancel(3)
        self.assertEqual(list(queue.drain()), [1, 2])

    def test_many_changes(self):
        for priorities, cancelled, name, priority, expected in (
            (
                [
                    ("e", 20),
                    ("n", 94),
                    ("g", 80),
                    ("c", 70),
                    ("k", 25),
                    ("m", 87),
                    ("p", 49),
                    ("d", 61),
                    ("i", 77),
                    ("f", 10),
                    ("b", 53),
                ],
                "bc",
                "n",
                4,
                "nfekpdigm",
            ),
            (
                [("e", 46), ("d", 34), ("h", 59), ("j", 15), ("g", 57), ("f", 93), ("k", 17), ("b", 30)],
                "dg",
                "e",
                21,
                "jkebhf",
            ),
            (
                [
                    ("f", 56),
                    ("j", 70),
                    ("m", 98),
                    ("n", 32),
                    ("c", 91),
                    ("b", 92),
                    ("o", 30),
                    ("g", 33),
                    ("d", 62),
                    ("p", 69),
                ],
                "fn",
                "g",
                4,
                "godpjcbm",
            ),
            (
                [("o", 34), ("p", 39), ("h", 63), ("g", 46), ("m", 60), ("a", 2), ("c", 19), ("i", 77)],
                "hg",
                "c",
                33,
                "acopmi",
            ),
        ):
            queue = JobQueue()
            for job, urgency in priorities:
                queue.add(job, urgency)
            for job in cancelled:
                queue.cancel(job)
            queue.reprioritise(name, priority)
            self.assertEqual("".join(queue.drain()), expected)
