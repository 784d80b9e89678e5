from cables import Networks


def test_a_cable_twice():
    networks = Networks("a - b\nb - a\n")
    assert networks.count == 1
    assert networks.spare == [("b", "a")]


def test_a_loop():
    networks = Networks("a - b\nb - c\nc - a\nd - e\n")
    assert networks.count == 2
    assert networks.size("a") == 3
    assert networks.spare == [("c", "a")]


def test_no_network_is_larger_than_its_machines():
    networks = Networks("a - b\n" * 10 + "c\n")
    assert networks.size("a") == 2
    assert networks.count == 2


def test_everything_stays_findable():
    networks = Networks("\n".join(f"m{i} - m{(i + 1) % 20}" for i in range(20)))
    assert networks.all() == [sorted(f"m{i}" for i in range(20))]
    assert networks.count == 1
    assert len(networks.spare) == 1
