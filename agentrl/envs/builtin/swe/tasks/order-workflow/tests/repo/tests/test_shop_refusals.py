import unittest

from shop import Machine, Order, Refused


class Thing:
    def __init__(self):
        self.state, self.history = "a", []


class RefusalsTest(unittest.TestCase):
    def test_a_refused_step_tells_nobody(self):
        mails = []
        order = Order(10, mails.append)
        with self.assertRaises(Refused):
            order.take("ship")
        self.assertEqual((mails, order.history, order.state), ([], [], "placed"))

    def test_hooks_see_the_new_state(self):
        mails = []
        order = Order(10, mails.append)
        order.pay(10)
        order.take("ship")
        self.assertEqual(mails, ["your order is on its way (shipped)"])
        self.assertEqual(order.history, [("pay", "placed", "placed"), ("ship", "placed", "shipped")])

    def test_a_failing_hook_undoes_the_step(self):
        def down(text):
            raise OSError("no mail server")

        order = Order(10, down)
        with self.assertRaises(OSError):
            order.take("cancel")
        self.assertEqual((order.state, order.history), ("placed", []))

    def test_the_second_of_two_hooks(self):
        machine, seen = Machine("a"), []
        machine.step("go", ["a"], "b")
        machine.on("go", lambda thing: seen.append(thing.state))
        machine.on("go", lambda thing: 1 / 0)
        thing = Thing()
        with self.assertRaises(ZeroDivisionError):
            machine.take(thing, "go")
        self.assertEqual((seen, thing.state, thing.history), (["b"], "a", []))

    def test_a_guard_is_asked_before_anything_happens(self):
        machine = Machine("a")
        machine.step("go", ["a"], "b", guard=lambda thing: thing.state == "a" and not thing.history)
        thing = Thing()
        machine.take(thing, "go")
        self.assertEqual(thing.state, "b")
