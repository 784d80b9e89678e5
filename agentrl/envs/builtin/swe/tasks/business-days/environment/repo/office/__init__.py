"""Working days."""

from office.days import Office

__all__ = ["Office"]
