"""Constraints such as ">=1.2.0 <2.0.0"."""

import operator
import re

from release.version import Version

ONE = re.compile(r"(>=|<=|==|>|<)(\S+)")
OPERATORS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}


def allows(constraint, version):
    """Whether a version meets every part of a constraint."""
    for part in constraint.split():
        match = ONE.fullmatch(part)
        if match is None:
            raise ValueError(f"cannot read {part!r}")
        if not OPERATORS[match[1]](version, Version.parse(match[2])):
            return False
    return True


def latest(texts, constraint="", pre=False):
    """The highest of some versions that a constraint allows, pre-releases only where they are wanted; or None."""
    versions = [version for version in map(Version.parse, texts) if pre or not version.pre]
    return max((version for version in versions if allows(constraint, version)), default=None)
