import unittest

from letter import format_mail, wrap


class LetterTest(unittest.TestCase):
    def test_wrapping(self):
        self.assertEqual(wrap("one two  three\nfour", 10), ["one two", "three four"])
        self.assertEqual(wrap("", 10), [])

    def test_paragraphs(self):
        self.assertEqual(format_mail("a\nb\n\nc\n"), "a b\n\nc\n")

    def test_lists(self):
        self.assertEqual(format_mail("* one two\n  three\n* four", 7), "* one\n  two\n  three\n* four\n")

    def test_quotes(self):
        self.assertEqual(format_mail("> hello\n> there"), "> hello there\n")
