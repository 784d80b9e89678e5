import unittest

from settings import SettingsError, parse


class ValuesTest(unittest.TestCase):
    def test_a_value_may_hold_equals_signs(self):
        settings = parse("[db]\nurl = pg://db/main?ssl=require&pool=4\n")
        self.assertEqual(settings.get("db", "url"), "pg://db/main?ssl=require&pool=4")

    def test_padding_at_the_end_of_a_value_stays(self):
        self.assertEqual(parse("key = c2VjcmV0Cg==").get("", "key"), "c2VjcmV0Cg==")

    def test_continuations_of_such_a_value(self):
        self.assertEqual(parse("q = a=1\n  b=2\n").get("", "q"), "a=1 b=2")

    def test_an_empty_value(self):
        self.assertEqual(parse("empty =\n").get("", "empty"), "")

    def test_a_continuation_of_nothing_is_an_error(self):
        with self.assertRaises(SettingsError):
            parse("[a]\n  more\n")
