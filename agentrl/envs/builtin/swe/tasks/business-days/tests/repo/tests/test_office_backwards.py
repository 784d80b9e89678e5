import unittest
from datetime import date, timedelta

from office import Office
from office.holidays import Holidays

HOLIDAYS = Holidays("12-25 Christmas\n12-26 Boxing Day\n2024-03-09 A Saturday\n2024-03-13 A Wednesday\n")


class BackwardsTest(unittest.TestCase):
    def test_from_monday_to_friday(self):
        self.assertEqual(Office().add(date(2024, 3, 11), -1), date(2024, 3, 8))

    def test_many_days_back(self):
        self.assertEqual(Office().add(date(2024, 3, 18), -10), date(2024, 3, 4))

    def test_back_over_holidays(self):
        self.assertEqual(Office(HOLIDAYS).add(date(2024, 12, 27), -1), date(2024, 12, 24))

    def test_a_holiday_on_a_weekend_costs_nothing(self):
        self.assertEqual(Office(HOLIDAYS).add(date(2024, 3, 4), 5), date(2024, 3, 11))

    def test_a_holiday_in_the_week_costs_a_day(self):
        self.assertEqual(Office(HOLIDAYS).add(date(2024, 3, 8), 5), date(2024, 3, 18))

    def test_no_days(self):
        self.assertEqual(Office(HOLIDAYS).add(date(2024, 3, 9), 0), date(2024, 3, 11))
        self.assertEqual(Office(HOLIDAYS).add(date(2024, 3, 12), 0), date(2024, 3, 12))

    def test_there_and_back(self):
        office = Office(HOLIDAYS)
        for offset in range(30):
            day = office.next_open(date(2024, 12, 1) + timedelta(days=offset))
            for count in (1, 4, 5, 23):
                self.assertEqual(office.add(office.add(day, count), -count), day)
