import unittest
from datetime import date

from office import Office
from office.holidays import Holidays


class OfficeTest(unittest.TestCase):
    def test_over_a_weekend(self):
        self.assertEqual(Office().add(date(2024, 3, 8), 1), date(2024, 3, 11))
        self.assertEqual(Office().add(date(2024, 3, 4), 10), date(2024, 3, 18))

    def test_over_a_holiday(self):
        office = Office(Holidays("2024-04-01 Easter Monday"))
        self.assertEqual(office.add(date(2024, 3, 29), 1), date(2024, 4, 2))

    def test_between(self):
        self.assertEqual(Office().between(date(2024, 3, 1), date(2024, 4, 1)), 21)

    def test_names(self):
        self.assertEqual(Holidays("12-25 Christmas").name(date(2030, 12, 25)), "Christmas")
