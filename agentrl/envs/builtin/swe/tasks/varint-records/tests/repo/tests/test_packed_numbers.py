import unittest

from packed import Truncated, read, write

LARGE = [2**21, 2**28 - 1, 2**28, 2**31, 2**63, 2**64 - 1, 10**30]


class NumbersTest(unittest.TestCase):
    def test_negative_numbers(self):
        records = [[-1, -2, -64, -65, 5], [-(10**12)]]
        self.assertEqual(list(read(write(records))), records)

    def test_the_bytes_of_negative_numbers(self):
        self.assertEqual(write([[-1]]), b"\x01i\x01")
        self.assertEqual(write([[-65]]), b"\x01i\x81\x01")

    def test_zigzag_of_other_writers(self):
        self.assertEqual(list(read(b"\x03i\x00i\x02i\x04")), [[0, 1, 2]])

    def test_large_numbers(self):
        self.assertEqual(list(read(write([LARGE]))), [LARGE])
        self.assertEqual(list(read(write([[-n for n in LARGE]]))), [[-n for n in LARGE]])

    def test_positive_numbers_are_written_as_before(self):
        self.assertEqual(write([[0, 127, 128]]), b"\x03u\x00u\x7fu\x80\x01")

    def test_whole_records_come_before_the_failure(self):
        data = write([[1], ["two"], [3, 4]])
        found = []
        with self.assertRaises(Truncated):
            for record in read(data[:-1]):
                found.append(record)
        self.assertEqual(found, [[1], ["two"]])

    def test_every_cut(self):
        records = [[7, -7], ["abc"]]
        data = write(records)
        for cut in range(1, len(data)):
            found = []
            try:
                for record in read(data[:cut]):
                    found.append(record)
            except Truncated:
                pass
            self.assertEqual(found, records[: len(found)])
