"""The sandboxes that attacks are run against: see tests/tools/sandbox/conftest.py."""

from __future__ import annotations

from tests.tools.sandbox.attacks.conftest import attack, jail  # noqa: F401
from tests.tools.sandbox.conftest import docker, make, make_shared, shared  # noqa: F401
