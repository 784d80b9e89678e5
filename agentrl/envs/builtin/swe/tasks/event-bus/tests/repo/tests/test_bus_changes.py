import unittest

from bus import Bus, once


class ChangesTest(unittest.TestCase):
    def setUp(self):
        self.bus = Bus()
        self.seen = []

    def test_nobody_is_left_out(self):
        for name in "abcd":
            once(self.bus, "e", lambda name=name: self.seen.append(name))
        self.assertEqual(self.bus.send("e"), 4)
        self.assertEqual(self.seen, ["a", "b", "c", "d"])
        self.assertEqual(self.bus.send("e"), 0)

    def test_who_comes_during_an_event_waits_for_the_next(self):
        def first():
            self.bus.subscribe("e", lambda: self.seen.append("late"))

        stop = self.bus.subscribe("e", first, priority=1)
        self.bus.subscribe("e", lambda: self.seen.append("early"))
        self.assertEqual(self.bus.send("e"), 2)
        self.assertEqual(self.seen, ["early"])
        stop()
        self.bus.send("e")
        self.assertEqual(self.seen, ["early", "early", "late"])

    def test_events_within_events(self):
        once(self.bus, "e", lambda: self.bus.send("f"))
        self.bus.subscribe("e", lambda: self.seen.append("e"))
        once(self.bus, "f", lambda: self.seen.append("f"))
        self.bus.send("e")
        self.assertEqual(self.seen, ["f", "e"])

    def test_clearing_during_an_event(self):
        self.bus.subscribe("e", self.bus.clear, priority=1)
        self.bus.subscribe("e", lambda: self.seen.append("e"))
        self.assertEqual(self.bus.send("e"), 2)
        self.assertEqual(self.bus.send("e"), 0)
