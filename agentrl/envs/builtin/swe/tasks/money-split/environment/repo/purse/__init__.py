"""Amounts of money in cents."""

from purse.money import Money
from purse.split import split

__all__ = ["Money", "split"]
