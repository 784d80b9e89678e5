"""The red team's lists are long, and each entry says what must not happen."""

from __future__ import annotations

import pytest

from tests.redteam.attack import ids
from tests.redteam.catalogue import CATALOGUE


def test_there_are_sixty_attacks_at_least() -> None:
    assert sum(len(attacks) for attacks in CATALOGUE.values()) >= 60


@pytest.mark.parametrize("against", CATALOGUE)
def test_each_has_a_name_a_payload_and_what_must_not_happen(against: str) -> None:
    attacks = CATALOGUE[against]
    assert len(ids(attacks)) == len(attacks) > 4
    for attack in attacks:
        assert attack.name.strip()
        assert attack.payload.strip()
        assert len(attack.must_not.split()) >= 3
