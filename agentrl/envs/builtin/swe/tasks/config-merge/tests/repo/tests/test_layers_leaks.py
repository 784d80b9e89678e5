from layers import Stack, merge


def test_the_base_stays():
    base = {"mail": {"footer": "bye", "deep": {"x": 1}}}
    merge(base, {"mail": {"footer": "A", "deep": {"x": 2}}})
    assert base == {"mail": {"footer": "bye", "deep": {"x": 1}}}


def test_results_share_nothing_with_the_arguments():
    base, over = {"a": {"list": [1]}}, {"b": {"list": [2]}}
    result = merge(base, over)
    result["a"]["list"].append(9)
    result["b"]["list"].append(9)
    assert (base, over) == ({"a": {"list": [1]}}, {"b": {"list": [2]}})


def test_none_removes_further_down():
    assert merge({"a": {"x": 1, "y": 2}}, {"a": {"x": None}}) == {"a": {"y": 2}}


def test_none_of_what_is_not_there():
    assert merge({}, {"a": {"b": None, "c": 1}}) == {"a": {"c": 1}}


def test_one_customer_after_the_other():
    defaults = {"mail": {"footer": "bye"}}
    for settings, footer in (({"mail": {"footer": "A"}}, "A"), ({}, "bye")):
        stack = Stack()
        stack.push("defaults", defaults)
        stack.push("customer", settings)
        assert stack.get("mail.footer") == footer
