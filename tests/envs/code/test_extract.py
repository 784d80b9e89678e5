"""Finding code in replies."""

from __future__ import annotations

import ast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.envs.builtin.code.extract import extract, fenced

CODE = "def f(x):\n    return x + 1\n"
PROMPT = 'import math\n\ndef helper(x):\n    return x\n\ndef f(x):\n    """Adds one."""\n'

WRAPPED = [
    CODE,
    f"Here it is:\n```python\n{CODE}```\nGood luck!",
    f"```\n{CODE}```",
    f"~~~py\n{CODE}~~~",
    f"```Python title=x.py\n{CODE}\n```",
    "1. First:\n   ```python\n   def f(x):\n       return x + 1\n   ```",
    f"```python\ndef f(x):\n    return 0\n```\nNo, wait.\n```python\n{CODE}```",
    f"```python\n{CODE}```\nFor example:\n```python\nprint(f(1))\n```\n```text\n2\n```",
    f"````markdown\nnot this\n````\n```python\n{CODE}```",
    f"It was cut off ```\n```python\n{CODE}",
]


@pytest.mark.parametrize("reply", WRAPPED)
def test_the_last_definition_is_found_however_it_is_wrapped(reply: str) -> None:
    sources = extract(reply, "f")
    assert sources is not None
    space: dict[str, object] = {}
    exec("\n".join(sources).replace("print(", "("), space)
    assert space["f"](1) == 2  # type: ignore[operator]


BODIES = ["    return x + 1\n", "return x + 1\n", "```python\n    return x + 1\n```", "\n\n    return x + 1"]


@pytest.mark.parametrize("body", BODIES)
def test_a_bare_body_completes_the_prompt(body: str) -> None:
    sources = extract(body, "f", PROMPT)
    assert sources is not None
    space: dict[str, object] = {}
    exec(sources[0], space)
    assert space["f"](1) == 2  # type: ignore[operator]


def test_a_whole_function_gets_the_prompts_imports_and_helpers() -> None:
    sources = extract(f"```python\nfrom __future__ import annotations\n{CODE}```", "f", PROMPT)
    assert sources is not None
    assert "import math" in sources[0]
    assert "def helper" in sources[0]
    assert "def f" not in sources[0]
    for source in sources:  # apart, because a __future__ import must stand first
        compile(source, "", "exec")


@pytest.mark.parametrize("reply", ["", "   \n", "I can't do that; sorry!", "The answer is: no."])
def test_a_reply_without_code_has_none(reply: str) -> None:
    assert extract(reply, "f") is None


def test_code_that_does_not_define_the_function_is_still_what_was_said() -> None:
    assert extract("```python\ndef g(): pass\n```", "f") == ("def g(): pass",)
    assert extract("```python\nthis is no (python\n```", "f") == ("this is no (python",)


@given(st.text(max_size=300))
@example("```" * 50)
@example("(" * 5000)
@example("\x00def f(): pass")
@example("```python\n" + "[" * 3000)
@pytest.mark.slow
def test_no_reply_breaks_the_extraction(reply: str) -> None:
    for prompt in ("", PROMPT):
        sources = extract(reply, "f", prompt)
        assert sources is None or all(isinstance(source, str) for source in sources)


@given(st.lists(st.sampled_from(["a = 1", "", "if a:\n    b = 2", "x = '''~~~'''"]), min_size=1, max_size=5))
def test_fenced_gives_back_what_was_fenced(blocks: list[str]) -> None:
    reply = "\nand\n".join(f"```python\n{block}\n```" for block in blocks)
    assert list(fenced(reply)) == blocks
    for block in blocks:
        ast.parse(block)
