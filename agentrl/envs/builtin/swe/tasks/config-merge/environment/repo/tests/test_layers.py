from layers import Stack, merge


def test_merging():
    assert merge({"a": 1, "b": {"x": 1}}, {"b": {"y": 2}, "c": 3}) == {"a": 1, "b": {"x": 1, "y": 2}, "c": 3}


def test_replacing():
    assert merge({"a": {"x": 1}, "b": [1]}, {"a": 5, "b": [2]}) == {"a": 5, "b": [2]}


def test_removing():
    assert merge({"a": 1, "b": 2}, {"a": None}) == {"b": 2}


def test_a_stack():
    stack = Stack()
    stack.push("defaults", {"mail": {"footer": "bye", "port": 25}})
    stack.push("customer", {"mail": {"port": 465}})
    assert stack.get("mail.port") == 465
    assert stack.origin("mail.port") == "customer"
    assert stack.origin("mail.footer") == "defaults"
    assert stack.pop() == "customer"
