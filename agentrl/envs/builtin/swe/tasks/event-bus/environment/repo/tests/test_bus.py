import unittest

from bus import Bus, once


class BusTest(unittest.TestCase):
    def setUp(self):
        self.bus = Bus()
        self.seen = []

    def test_listeners_by_priority(self):
        self.bus.subscribe("e", lambda: self.seen.append("low"))
        self.bus.subscribe("e", lambda: self.seen.append("high"), priority=5)
        self.assertEqual(self.bus.send("e"), 2)
        self.assertEqual(self.seen, ["high", "low"])

    def test_stopping(self):
        stop = self.bus.subscribe("e", self.seen.append)
        self.bus.send("e", 1)
        stop()
        stop()
        self.assertEqual(self.bus.send("e", 2), 0)
        self.assertEqual(self.seen, [1])

    def test_once(self):
        once(self.bus, "e", self.seen.append)
        self.bus.send("e", 1)
        self.bus.send("e", 2)
        self.assertEqual(self.seen, [1])

    def test_clearing(self):
        self.bus.subscribe("e", self.seen.append)
        self.bus.clear("e")
        self.assertEqual(self.bus.send("e", 1), 0)
