import unittest

from query import Fields, parse


class QueryTest(unittest.TestCase):
    def test_fields(self):
        self.assertEqual(parse("?a=1&b=two").pairs, [("a", "1"), ("b", "two")])

    def test_escapes(self):
        self.assertEqual(parse("name=J%C3%BCrgen+K").get("name"), "J\u00fcrgen K")

    def test_a_name_twice(self):
        fields = parse("tag=x&tag=y")
        self.assertEqual(fields.all("tag"), ["x", "y"])
        self.assertEqual(fields.get("tag"), "y")

    def test_text(self):
        self.assertEqual(str(Fields([("q", "a b/c")])), "q=a+b%2Fc")
