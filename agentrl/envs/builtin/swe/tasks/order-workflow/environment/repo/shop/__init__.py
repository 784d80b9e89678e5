"""Orders and what becomes of them."""

from shop.machine import Machine, Refused
from shop.orders import Order

__all__ = ["Machine", "Order", "Refused"]
