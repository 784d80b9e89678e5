"""Every list of attacks there is, by what it is run against."""

from __future__ import annotations

from tests.envs.code import test_judging
from tests.envs.swe import test_cheats
from tests.redteam.archives import ARCHIVES
from tests.redteam.attack import Attack
from tests.redteam.cheats import ANSWERS, CHEATS
from tests.redteam.escapes import ESCAPES
from tests.redteam.hoards import HOARDS
from tests.redteam.kernel import KERNEL
from tests.redteam.poisonings import BACKGROUND, POISONINGS

PAID = "it is worth something"

CATALOGUE: dict[str, list[Attack]] = {
    "the kernel's borders": KERNEL,
    "the end of a command": ESCAPES,
    "archives on the way out": ARCHIVES,
    "the next session in a sandbox": [*POISONINGS, *BACKGROUND],
    "the sandboxes beside it": HOARDS,
    "whoever scores it": CHEATS,
    "how tests ask it": ANSWERS,
    "the scorer of repositories": [Attack(name, repr(files), PAID) for name, files in test_cheats.CHEATS.items()],
    "the scorer of functions": [Attack(name, code, PAID) for name, code in test_judging.CHEATS.items()]
    + [Attack(name, code, PAID) for name, (code, _) in test_judging.UNDER_COVER.items()],
}
