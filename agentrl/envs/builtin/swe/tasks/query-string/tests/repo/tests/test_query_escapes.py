import unittest

from query import Fields, parse


class EscapesTest(unittest.TestCase):
    def test_an_escaped_ampersand(self):
        self.assertEqual(parse("q=R%26D&page=2").pairs, [("q", "R&D"), ("page", "2")])

    def test_an_escaped_equals_sign_in_a_name(self):
        self.assertEqual(parse("a%3Db=c").pairs, [("a=b", "c")])

    def test_an_escaped_plus(self):
        self.assertEqual(parse("q=1%2B1").get("q"), "1+1")

    def test_there_and_back(self):
        pairs = [("a&b", "c=d"), ("+", "%"), ("", "x"), ("100%", "\u20ac")]
        self.assertEqual(parse(str(Fields(pairs))).pairs, pairs)

    def test_broken_escapes_stay(self):
        self.assertEqual(parse("q=5%&r=%zz").pairs, [("q", "5%"), ("r", "%zz")])
