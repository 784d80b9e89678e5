import unittest

from pointer import PointerError, assign, build, parse, resolve

DOCUMENT = {"name": "x", "list": [1, {"deep": True}], "a/b": 2, "m~n": 3, "": 4}


class PointerTest(unittest.TestCase):
    def test_the_whole_document(self):
        self.assertIs(resolve(DOCUMENT, ""), DOCUMENT)

    def test_keys_and_indices(self):
        self.assertEqual(resolve(DOCUMENT, "/list/1/deep"), True)

    def test_escaped_keys(self):
        self.assertEqual(resolve(DOCUMENT, "/a~1b"), 2)
        self.assertEqual(resolve(DOCUMENT, "/m~0n"), 3)

    def test_leading_nowhere(self):
        for text in ("/nothing", "/list/2", "/name/x"):
            with self.assertRaises(PointerError):
                resolve(DOCUMENT, text)

    def test_building(self):
        self.assertEqual(build(["a", 0]), "/a/0")
        self.assertEqual(parse("/a/0"), ["a", "0"])

    def test_assigning(self):
        document = {"list": [1]}
        assign(document, "/list/-", 2)
        assign(document, "/list/0", 0)
        self.assertEqual(document, {"list": [0, 2]})
