import io
import unittest

from count import count
from count.__main__ import main


class CountTest(unittest.TestCase):
    def test_counts(self):
        counts = count(io.BytesIO(b"one two\nthree\n"))
        self.assertEqual((counts.lines, counts.words, counts.bytes, counts.longest), (2, 3, 14, 7))

    def test_words_across_chunks(self):
        self.assertEqual(count(io.BytesIO(b"hello world\n"), chunk=3).words, 2)

    def test_the_command_line(self):
        out = io.StringIO()
        self.assertEqual(main(["-w"], io.BytesIO(b"a b c\n"), out), 0)
        self.assertEqual(out.getvalue(), "3\n")

    def test_a_missing_file(self):
        self.assertEqual(main(["/no/such/file"], out=io.StringIO()), 1)
