import threading
from datetime import datetime

import pytest

from tick import Schedule

NOON = datetime(2024, 2, 28, 12, 0)


def test_either_of_two_days():
    days = [m.day for m in Schedule("0 9 1 * 1").upcoming(NOON, 4)]
    assert days == [1, 4, 11, 18]


def test_a_step_is_no_restriction_of_days():
    days = [m.day for m in Schedule("0 0 */10 * 5").upcoming(datetime(2024, 3, 1), 2)]
    assert days == [31, 21]


def test_only_one_of_the_two():
    assert Schedule("0 0 * * 1").next(NOON) == datetime(2024, 3, 4)
    assert Schedule("0 0 13 * *").next(NOON) == datetime(2024, 3, 13)


def test_seven_is_sunday():
    assert Schedule("0 0 * * 7").next(NOON) == datetime(2024, 3, 3)
    assert Schedule("0 0 * * 5-7").upcoming(NOON, 3)[2] == datetime(2024, 3, 3)


def test_steps_begin_with_the_range():
    assert [m.minute for m in Schedule("5-59/20 * * * *").upcoming(NOON, 3)] == [5, 25, 45]
    assert Schedule("0 0 1-31/2 * *").next(datetime(2024, 3, 1)) == datetime(2024, 3, 3)


def test_leap_days():
    assert Schedule("0 0 29 2 *").next(datetime(2024, 3, 1)) == datetime(2028, 2, 29)


@pytest.mark.parametrize("text", ["0,0,31,2,*", "0,0,31,4,*"])
def test_never(text):
    found = []
    schedule = Schedule(text.replace(",", " "))
    thread = threading.Thread(target=lambda: found.append(schedule.next(NOON)), daemon=True)
    thread.start()
    thread.join(10)
    assert found == [None]
