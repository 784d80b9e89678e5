from cables import Networks


def test_two_networks():
    networks = Networks("a - b\nc - d # far away\n")
    assert networks.count == 2
    assert networks.connected("a", "b")
    assert not networks.connected("a", "c")
    assert not networks.connected("a", "nothing")


def test_a_line_of_several():
    networks = Networks("a - b - c\nlonely\n")
    assert networks.all() == [["a", "b", "c"], ["lonely"]]
    assert networks.size("b") == 3


def test_a_machine_with_itself():
    networks = Networks("a - a")
    assert networks.count == 1
    assert networks.spare == [("a", "a")]
