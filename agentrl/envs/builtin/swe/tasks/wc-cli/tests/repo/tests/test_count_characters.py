import io
import unittest

from count import count
from count.__main__ import main

GREEK = "\u03b1\u03b2\u03b3 \u03b4\n".encode()


class CharactersTest(unittest.TestCase):
    def test_characters_are_not_bytes(self):
        counts = count(io.BytesIO(GREEK))
        self.assertEqual((counts.characters, counts.bytes), (6, 10))

    def test_characters_across_chunks(self):
        for chunk in (1, 2, 3, 7):
            self.assertEqual(count(io.BytesIO(GREEK * 5), chunk).characters, 30)

    def test_a_last_line_without_a_line_feed(self):
        self.assertEqual(count(io.BytesIO(b"a\nb")).lines, 2)
        self.assertEqual(count(io.BytesIO(b"a")).lines, 1)

    def test_nothing_is_no_line(self):
        self.assertEqual(count(io.BytesIO(b"")).lines, 0)
        self.assertEqual(count(io.BytesIO(b"\n\n")).lines, 2)

    def test_the_command_line(self):
        out = io.StringIO()
        main(["-m", "-c", "-l"], io.BytesIO(GREEK + b"x"), out)
        self.assertEqual(out.getvalue(), "2 7 11\n")
