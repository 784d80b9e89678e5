import unittest

from shop import Order, Refused


class ShopTest(unittest.TestCase):
    def setUp(self):
        self.mails = []
        self.order = Order(10, self.mails.append)

    def test_cancelling(self):
        self.order.take("cancel")
        self.assertEqual(self.order.state, "cancelled")
        self.assertEqual(self.mails, ["your order was cancelled"])

    def test_what_is_possible(self):
        self.assertEqual(self.order.machine.possible(self.order), ["pay", "cancel"])

    def test_a_wrong_state(self):
        with self.assertRaises(Refused):
            self.order.take("deliver")
        self.assertEqual(self.order.history, [])

    def test_paying(self):
        self.order.pay(10)
        with self.assertRaises(Refused):
            self.order.pay(1)
        self.assertEqual(self.order.paid, 10)
