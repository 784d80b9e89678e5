"""An order: placed, paid, shipped, delivered, or cancelled."""

from shop.machine import Machine

MACHINE = Machine("placed")
MACHINE.step("pay", ["placed"], "placed", guard=lambda order: order.paid < order.total)
MACHINE.step("ship", ["placed"], "shipped", guard=lambda order: order.paid >= order.total)
MACHINE.step("deliver", ["shipped"], "delivered")
MACHINE.step("cancel", ["placed"], "cancelled")


class Order:
    """An order.

    Args:
        total: what it costs.
        mail: a function that tells the customer something.
        machine: the plan it follows.
    """

    def __init__(self, total, mail=print, machine=MACHINE):
        self.total = total
        self.paid = 0
        self.mail = mail
        self.machine = machine
        self.state = machine.start
        self.history = []

    def pay(self, amount):
        self.machine.take(self, "pay")
        self.paid += amount

    def take(self, name):
        self.machine.take(self, name)


MACHINE.on("ship", lambda order: order.mail(f"your order is on its way ({order.state})"))
MACHINE.on("cancel", lambda order: order.mail("your order was cancelled"))
