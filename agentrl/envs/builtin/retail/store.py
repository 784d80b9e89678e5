"""The tools of the retail world, which work on a store's records.

The rules of each tool are tau2-bench's. Every check comes before the first change, so a refused call changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from agentrl.envs.builtin.retail.data import Record
from agentrl.envs.builtin.retail.records import RetailRecords, address_of, check_items, difference_of, folded
from agentrl.errors import ToolError
from agentrl.tools.calculator import evaluate
from agentrl.tools.schema import shown
from agentrl.tools.tool import mark_of, tool

Reason = Literal["no longer needed", "ordered by mistake"]


class RetailStore(RetailRecords):
    """An episode's records with the agent's tools."""

    def apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Call tools by name, in order; those that refuse change nothing.

        Args:
            actions: each with a `name` and `arguments`; names that are no tool are left out.
        """
        for action in actions:
            if action["name"] in TOOLS:
                try:
                    getattr(self, action["name"])(**action["arguments"])
                except (ToolError, TypeError):  # TypeError: other arguments than the tool's
                    continue

    # ------------------------------------------------------------------------------ reading

    @tool(quick=True)
    def find_user_id_by_email(self, email: str) -> str:
        """Find a customer's user id by email.

        Args:
            email: such as name@example.com.
        """
        wanted = folded(email)
        return self.find_user(lambda user: folded(user["email"]) == wanted)

    @tool(quick=True)
    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a customer's user id by name and zip code, where they do not know their email.

        Args:
            first_name: such as Ann.
            last_name: such as Lee.
            zip: such as 10001.
        """
        name = folded(first_name), folded(last_name)
        return self.find_user(
            lambda user: (
                (folded(user["name"]["first_name"]), folded(user["name"]["last_name"])) == name
                and user["address"]["zip"] == zip
            )
        )

    @tool(quick=True)
    def get_user_details(self, user_id: str) -> Record:
        """A customer's name, address, email, payment methods and orders.

        Args:
            user_id: such as ann_lee_1234.
        """
        user = self.get("users", user_id)
        self.found.add(user_id)
        return user

    @tool(quick=True)
    def get_order_details(self, order_id: str) -> Record:
        """An order's items, status, address, tracking numbers and payments.

        Args:
            order_id: such as #W0000000, with the # in front.
        """
        order = self.get("orders", order_id)
        self.found.add(order["user_id"])
        return order

    @tool(quick=True)
    def get_product_details(self, product_id: str) -> Record:
        """A product's variants: their options, price and availability.

        Args:
            product_id: such as 1234567890; not an item's id.
        """
        return self.get("products", product_id)

    @tool(quick=True)
    def get_item_details(self, item_id: str) -> Record:
        """One variant of a product: its options, price and availability.

        Args:
            item_id: such as 1234567890; not a product's id.
        """
        for product in self.database.products.values():
            if item_id in product["variants"]:
                return dict(product["variants"][item_id])
        raise ToolError(f"there is no item {shown(item_id)}")

    @tool(quick=True)
    def list_all_product_types(self) -> dict[str, str]:
        """The store's products: their names and product ids."""
        return dict(sorted((each["name"], each["product_id"]) for each in self.database.products.values()))

    @tool(quick=True)
    def calculate(self, expression: str) -> str:
        """Work out an arithmetic expression, rounded to cents.

        Args:
            expression: numbers with + - * / and brackets.
        """
        return str(round(float(evaluate(expression)), 2))

    # ------------------------------------------------------------------------------ orders

    @tool(quick=True)
    def cancel_pending_order(self, order_id: str, reason: Reason) -> Record:
        """Cancel a pending order and refund it. Ask the customer to confirm first.

        Args:
            order_id: such as #W0000000.
            reason: the customer's.
        """
        if reason not in ("no longer needed", "ordered by mistake"):
            raise ToolError("the reason must be 'no longer needed' or 'ordered by mistake'")
        order = self.order(order_id, "pending", "cancelled")
        for payment in order["payment_history"]:
            self.method(order, payment["payment_method_id"])
        order = self.change("orders", order_id)
        for payment in list(order["payment_history"]):
            order["payment_history"].append({**payment, "transaction_type": "refund"})
            self.pay(order, payment["payment_method_id"], -payment["amount"])
        order.update(status="cancelled", cancel_reason=reason)
        return order

    @tool(quick=True)
    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        """Change the shipping address of a pending order. Ask the customer to confirm first.

        Args:
            order_id: such as #W0000000.
            address1: street and number.
            address2: apartment or suite, or an empty text.
            city: such as Denver.
            state: such as CO.
            country: such as USA.
            zip: such as 80201.
        """
        address = address_of(address1, address2, city, state, country, zip)
        self.pending(order_id)
        return self.set("orders", order_id, address=address)

    @tool(quick=True)
    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Replace items of a pending order by other variants of the same products; possible once for an order.

        Ask the customer to confirm first.

        Args:
            order_id: such as #W0000000.
            item_ids: the items to replace.
            new_item_ids: what replaces each of them, in the same order.
            payment_method_id: pays, or is refunded, the difference.
        """
        order = self.order(order_id, "pending", "modified")
        variants = self.replacements(order, item_ids, new_item_ids)
        if any(old == new for old, new in zip(item_ids, new_item_ids, strict=True)):
            raise ToolError("a new item must be another one than the old item")
        difference = difference_of(order, item_ids, variants)
        self.check_balance(order, payment_method_id, difference)
        order = self.change("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        payment = {"transaction_type": kind, "amount": abs(difference), "payment_method_id": payment_method_id}
        order["payment_history"].append(payment)
        self.pay(order, payment_method_id, difference)
        unchanged = list(order["items"])
        for item_id, variant in zip(item_ids, variants, strict=True):
            item = next(each for each in unchanged if each["item_id"] == item_id)
            unchanged.remove(item)
            item.update(item_id=variant["item_id"], price=variant["price"], options=dict(variant["options"]))
        order["status"] = "pending (item modified)"
        return order

    @tool(quick=True)
    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Record:
        """Change how a pending order is paid. Ask the customer to confirm first.

        Args:
            order_id: such as #W0000000.
            payment_method_id: the new payment method.
        """
        order, history = self.pending(order_id), self.get("orders", order_id)["payment_history"]
        self.method(order, payment_method_id)
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolError("the order has other payments than a single one")
        old, amount = history[0]["payment_method_id"], history[0]["amount"]
        if old == payment_method_id:
            raise ToolError("the order is paid with that payment method already")
        self.check_balance(order, payment_method_id, amount)
        order = self.change("orders", order_id)
        for kind, method, paid in (("payment", payment_method_id, amount), ("refund", old, -amount)):
            order["payment_history"].append({"transaction_type": kind, "amount": amount, "payment_method_id": method})
            self.pay(order, method, paid)
        return order

    @tool(quick=True)
    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Record:
        """Return items of a delivered order. Ask the customer to confirm first.

        Args:
            order_id: such as #W0000000.
            item_ids: the items to return.
            payment_method_id: gets the refund: the order's own payment method, or a gift card.
        """
        order = self.order(order_id, "delivered", "returned")
        method = self.method(order, payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("a refund goes to the order's own payment method or to a gift card")
        check_items(order, item_ids)
        return self.set(
            "orders",
            order_id,
            status="return requested",
            return_items=sorted(item_ids),
            return_payment_method_id=payment_method_id,
        )

    @tool(quick=True)
    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Exchange items of a delivered order for other variants of the same products; possible once for an order.

        Ask the customer to confirm first.

        Args:
            order_id: such as #W0000000.
            item_ids: the items to exchange.
            new_item_ids: what each is exchanged for, in the same order.
            payment_method_id: pays, or is refunded, the difference.
        """
        order = self.order(order_id, "delivered", "exchanged")
        variants = self.replacements(order, item_ids, new_item_ids)
        difference = difference_of(order, item_ids, variants)
        self.check_balance(order, payment_method_id, difference)
        return self.set(
            "orders",
            order_id,
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )

    @tool(quick=True)
    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        """Change a customer's default address. Ask the customer to confirm first.

        Args:
            user_id: such as ann_lee_1234.
            address1: street and number.
            address2: apartment or suite, or an empty text.
            city: such as Denver.
            state: such as CO.
            country: such as USA.
            zip: such as 80201.
        """
        return self.set("users", user_id, address=address_of(address1, address2, city, state, country, zip))

    @tool(quick=True)
    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the customer to a human agent, where the request is beyond what the tools and the policy allow.

        Args:
            summary: of the customer's request.
        """
        self.transferred = True
        return "Transfer successful"


TOOLS = tuple(name for name, member in vars(RetailStore).items() if mark_of(member) is not None)
"""The names of the tools."""
