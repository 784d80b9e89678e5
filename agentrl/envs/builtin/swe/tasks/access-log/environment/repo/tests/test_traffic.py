import unittest

from traffic import Report, parse_line

LINE = '10.0.0.1 - ada [02/Mar/2024:10:15:00 +0000] "GET /a?b=1 HTTP/1.1" 200 512 "-" "Mozilla/5.0 (X11; Linux)"'


class TrafficTest(unittest.TestCase):
    def test_a_line(self):
        entry = parse_line(LINE)
        self.assertEqual((entry.host, entry.method, entry.path), ("10.0.0.1", "GET", "/a?b=1"))
        self.assertEqual((entry.status, entry.size, entry.agent), (200, 512, "Mozilla/5.0 (X11; Linux)"))

    def test_the_short_format(self):
        self.assertEqual(parse_line(LINE[: LINE.index(' "-"')]).agent, "-")

    def test_something_else(self):
        self.assertIsNone(parse_line("hello"))

    def test_a_report(self):
        report = Report()
        for line in (LINE, LINE, "junk"):
            report.add(line)
        self.assertEqual((report.requests, report.skipped), (2, 1))
        self.assertEqual(report.top(), [("/a", 2)])
        self.assertEqual(report.bytes["10.0.0.1"], 1024)
