import unittest

from traffic import Report, parse_line

START = "10.0.0.7 - - [02/Mar/2024:10:15:00 +0000] "


class QuotesTest(unittest.TestCase):
    def test_quotation_marks_in_the_address(self):
        entry = parse_line(START + r'"GET /search?q=\"pipe\" HTTP/1.1" 200 512 "-" "curl/8"')
        self.assertEqual(entry.path, '/search?q="pipe"')

    def test_quotation_marks_in_the_agent(self):
        entry = parse_line(START + r'"GET / HTTP/1.1" 200 5 "-" "the \"best\" bot"')
        self.assertEqual(entry.agent, 'the "best" bot')

    def test_a_backslash_at_the_end(self):
        entry = parse_line(START + r'"GET /dir\\ HTTP/1.1" 404 9 "-" "x\\"')
        self.assertEqual((entry.path, entry.agent), ("/dir\\", "x\\"))

    def test_nothing_was_sent(self):
        entry = parse_line(START + '"HEAD / HTTP/1.1" 304 - "-" "curl/8"')
        self.assertEqual((entry.method, entry.size), ("HEAD", 0))

    def test_a_field_that_never_ends(self):
        self.assertIsNone(parse_line(START + r'"GET / HTTP/1.1\" 200 5 "-" "x"'))

    def test_a_report_skips_nothing(self):
        report = Report()
        report.add(START + r'"GET /a?\" HTTP/1.1" 200 - "-" "x"')
        self.assertEqual((report.requests, report.skipped, report.bytes["10.0.0.7"]), (1, 0, 0))
