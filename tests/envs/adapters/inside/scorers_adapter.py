"""The comparisons with published scorers, where these are installed: math-verify, and IFEval's checker."""

from __future__ import annotations

import if_verifiable.ifeval.instructions_registry  # noqa: F401 - missing, the comparisons would be skipped
import math_verify  # noqa: F401

from tests.envs.questions.test_questions import test_verdicts_are_those_of_math_verify  # noqa: F401
from tests.envs.test_instructions import test_verdicts_are_those_of_the_published_checker  # noqa: F401
