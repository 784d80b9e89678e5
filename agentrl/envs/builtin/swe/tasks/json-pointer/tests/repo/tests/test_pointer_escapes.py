import unittest

from pointer import PointerError, assign, build, parse, resolve


class EscapesTest(unittest.TestCase):
    def test_a_tilde_before_a_one(self):
        self.assertEqual(resolve({"a~1b": 5}, "/a~01b"), 5)

    def test_a_tilde_before_a_zero(self):
        self.assertEqual(parse("/~00"), ["~0"])

    def test_there_and_back(self):
        for key in ("a~1b", "~0", "/~", "~/", "~~1//0", "a/b~"):
            self.assertEqual(parse(build([key])), [key])

    def test_building_escapes_a_slash(self):
        self.assertEqual(build(["a/b", "m~n"]), "/a~1b/m~0n")

    def test_assigning_such_a_key(self):
        document = {}
        assign(document, "/x~01", 1)
        self.assertEqual(document, {"x~1": 1})

    def test_indices_have_no_sign_and_no_leading_zero(self):
        for token in ("-1", "01", "+1", " 1", "1_0", "\u0661"):
            with self.assertRaises(PointerError):
                resolve({"list": list(range(20))}, "/list/" + token)

    def test_zero_is_an_index(self):
        self.assertEqual(resolve([7], "/0"), 7)
