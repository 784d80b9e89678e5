import unittest

from letter import format_mail, wrap

TEXT = "the quick brown fox jumps over the lazy dog and is gone before anybody can say a word about it"


class WidthTest(unittest.TestCase):
    def test_no_line_is_too_long(self):
        self.assertEqual([max(len(line) for line in wrap(TEXT, width)) for width in (9, 10, 11, 19)], [9, 10, 11, 19])

    def test_an_exact_fit(self):
        self.assertEqual(wrap("aaa bbb ccc", 7), ["aaa bbb", "ccc"])
        self.assertEqual(wrap("aaa bbbb", 7), ["aaa", "bbbb"])

    def test_a_long_word_has_a_line_of_its_own(self):
        self.assertEqual(wrap("see https://example.org/abc for more", 10), ["see", "https://example.org/abc", "for more"])

    def test_lines_of_blanks_part_paragraphs(self):
        self.assertEqual(format_mail("a\n   \nb\n\t\n\nc"), "a\n\nb\n\nc\n")

    def test_the_mark_of_a_quote_counts(self):
        self.assertEqual(format_mail("> aaa bbb ccc", 9), "> aaa bbb\n> ccc\n")
        self.assertEqual(format_mail("> aaa bbb ccc", 8), "> aaa\n> bbb\n> ccc\n")

    def test_words_stay_in_order(self):
        for width in range(1, 40):
            self.assertEqual(" ".join(wrap(TEXT, width)).split(), TEXT.split())
