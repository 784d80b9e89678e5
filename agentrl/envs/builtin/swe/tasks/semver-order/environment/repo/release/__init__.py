"""Versions as semver.org has them."""

from release.constraint import allows, latest
from release.version import Version

__all__ = ["Version", "allows", "latest"]
