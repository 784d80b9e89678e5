import unittest

from packed import Truncated, read, write


class PackedTest(unittest.TestCase):
    def test_there_and_back(self):
        records = [[1, "one"], [], [300, "\u00e9", 0]]
        self.assertEqual(list(read(write(records))), records)

    def test_the_bytes(self):
        self.assertEqual(write([[300, "hi"]]), b"\x02u\xac\x02s\x02hi")

    def test_an_unknown_tag(self):
        with self.assertRaises(ValueError):
            list(read(b"\x01x\x00"))

    def test_cut_off(self):
        with self.assertRaises(Truncated):
            list(read(write([[1, "one"]])[:-1]))
