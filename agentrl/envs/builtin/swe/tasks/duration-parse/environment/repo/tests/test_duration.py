import unittest

from spell import format_duration, parse


class DurationTest(unittest.TestCase):
    def test_parsing(self):
        self.assertEqual(parse("1h30m"), 5400)
        self.assertEqual(parse("-90s"), -90)
        self.assertEqual(parse(" 2 m 5 s "), 125)

    def test_refusals(self):
        for text in ("", "5", "3x", "5s1h", "1h 2h"):
            with self.assertRaises(ValueError):
                parse(text)

    def test_formatting(self):
        self.assertEqual(format_duration(3725), "1h2m5s")
        self.assertEqual(format_duration(0), "0s")
        self.assertEqual(format_duration(0.25), "250ms")
