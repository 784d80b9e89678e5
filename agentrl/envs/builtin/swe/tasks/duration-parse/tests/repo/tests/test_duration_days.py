import unittest

from spell import format_duration, parse


class DaysTest(unittest.TestCase):
    def test_days(self):
        self.assertEqual(parse("2d4h"), 187200)

    def test_days_come_first(self):
        with self.assertRaises(ValueError):
            parse("4h2d")

    def test_fractions(self):
        self.assertEqual(parse("1.5h"), 5400)
        self.assertEqual(parse("0.5d"), 43200)

    def test_formatting_days(self):
        self.assertEqual(format_duration(93784), "1d2h3m4s")
        self.assertEqual(format_duration(-86400), "-1d")

    def test_there_and_back(self):
        for seconds in (1, 59, 3600, 90000.5, 10**6):
            self.assertAlmostEqual(parse(format_duration(seconds)), seconds)
