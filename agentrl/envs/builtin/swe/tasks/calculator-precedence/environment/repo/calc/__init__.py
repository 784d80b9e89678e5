"""A calculator for one line of arithmetic."""

from calc.parser import CalcError, evaluate

__all__ = ["CalcError", "evaluate"]
