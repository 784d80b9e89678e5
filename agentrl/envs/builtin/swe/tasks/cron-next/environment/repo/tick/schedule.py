"""A schedule of five fields: minute, hour, day of the month, month, weekday (0 is Sunday)."""

from datetime import timedelta

from tick.fields import parse_field

LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
NAMED = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}


class Schedule:
    def __init__(self, text):
        fields = NAMED.get(text.strip(), text).split()
        if len(fields) != len(LIMITS):
            raise ValueError(f"{text!r} has {len(fields)} fields: five are needed")
        sets = [parse_field(field, low, high) for field, (low, high) in zip(fields, LIMITS)]
        self.minutes, self.hours, self.days, self.months, self.weekdays = sets

    def fits_day(self, day):
        """Whether it runs at all on a day."""
        if day.month not in self.months:
            return False
        by_day = day.day in self.days
        by_weekday = day.isoweekday() % 7 in self.weekdays
        return by_day and by_weekday

    def fits(self, moment):
        return self.fits_day(moment) and moment.hour in self.hours and moment.minute in self.minutes

    def next(self, moment):
        """The first moment after another at which it runs; None where there is none."""
        moment = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        while True:
            if not self.fits_day(moment):
                moment = moment.replace(hour=0, minute=0) + timedelta(days=1)
            elif moment.hour not in self.hours:
                moment = moment.replace(minute=0) + timedelta(hours=1)
            elif moment.minute not in self.minutes:
                moment += timedelta(minutes=1)
            else:
                return moment

    def upcoming(self, moment, count):
        """The next moments at which it runs."""
        found = []
        while len(found) < count and (moment := self.next(moment)) is not None:
            found.append(moment)
        return found
