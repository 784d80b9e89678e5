from sizes import human


def test_just_below_a_unit():
    assert human(1024**2 - 1) == "1.0 MiB"
    assert human(1024**3 - 1) == "1.0 GiB"


def test_decimal_units():
    assert human(999_960, decimal=True) == "1.0 MB"
    assert human(999_940, decimal=True) == "999.9 kB"


def test_more_digits():
    assert human(1024**2 - 1, digits=3) == "1023.999 KiB"
    assert human(1024**2 - 1, digits=2) == "1.00 MiB"


def test_bytes_are_not_rounded():
    assert human(1023) == "1023 B"
    assert human(1024) == "1.0 KiB"


def test_no_unit_beyond_the_last():
    assert human(5000 * 1024**4) == "5000.0 TiB"


def test_negative():
    assert human(-(1024**2) + 1) == "-1.0 MiB"
