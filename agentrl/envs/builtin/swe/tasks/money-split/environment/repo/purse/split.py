"""Splitting an amount by weights."""

from purse.money import Money


def split(money, weights):
    """Parts of an amount in proportion to whole-number weights; together they are the amount.

    Raises:
        ValueError: there is no weight above zero, or one below.
    """
    weights = list(weights)
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights {weights}: none may be negative, and one must be positive")
    return [Money(money.cents * weight // total, money.currency) for weight in weights]


def share(money, names):
    """Equal parts by name."""
    names = list(names)
    return dict(zip(names, split(money, [1] * len(names))))
