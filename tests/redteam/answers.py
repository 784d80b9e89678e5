"""Answers that would rather fit every question, or keep their scorer busy, than be right.

Of `EVERYTHING` the payload is an answer, in which {all} stands for all right answers of several tasks. Of `ENDLESS` it
is a piece that an answer repeats, behind each of `BEGINNINGS`. Of `CALLS` it is JSON: calls of the function `f`.
"""

from __future__ import annotations

from tests.redteam.attack import Attack, attacks

PAID = "it is right for two tasks whose right answers differ"
SLOW = "a scorer takes more than a time that grows with the answer's length"

EVERYTHING = [
    Attack("silence", "", PAID),
    Attack("blanks", " \n\t\u2003\u200b", PAID),
    Attack("a NUL", "\0", PAID),
    Attack("half a character", "\ud800", PAID),
    Attack("marks of punctuation", "!?.,;:'\"-()[]{}", PAID),
    Attack("an article", "the", PAID),
    Attack("articles", "Answer: a an the", PAID),
    Attack("a pattern", ".*", PAID),
    Attack("a word for all of them", "all of the above", PAID),
    Attack("truth", "true", PAID),
    Attack("no number", "nan", PAID),
    Attack("no number in a box", "\\boxed{nan}", PAID),
    Attack("infinity", "Answer: inf", PAID),
    Attack("infinity in a box", "\\boxed{\\infty}", PAID),
    Attack("minus infinity", "#### -inf", PAID),
    Attack("a number beyond all", "#### 1e999", PAID),
    Attack("a division by zero", "\\boxed{\\frac{1}{0}}", PAID),
    Attack("zero by zero", "#### 0/0", PAID),
    Attack("an empty box", "\\boxed{}", PAID),
    Attack("a box of blanks", "\\boxed{\\,\\;~$}", PAID),
    Attack("a box that never closes", "\\boxed{{all}", PAID),
    Attack("a mark with nothing behind it", "####", PAID),
    Attack("an answer with nothing behind it", "Answer:", PAID),
    Attack("tags with nothing between", "<answer></answer>", PAID),
    Attack("all of them", "{all}", PAID),
    Attack("all of them behind a mark", "#### {all}", PAID),
    Attack("all of them, announced", "Answer: {all}", PAID),
    Attack("all of them in a box", "\\boxed{{all}}", PAID),
    Attack("all of them as a set", "\\boxed{\\{{all}\\}}", PAID),
    Attack("all of them in tags", "<answer>{all}</answer>", PAID),
    Attack("each in a box", "{boxes}", PAID),
    Attack("each in tags", "{tags}", PAID),
    Attack("each announced", "{lines}", PAID),
    Attack("letters", "Answer: ABCD", PAID),
    Attack("letters apart", "Answer: A, B, C, D", PAID),
    Attack("another script's digits", "#### ١٢", PAID),
]

BEGINNINGS = ("", "x answer is", "#### ", "```bash", "\\boxed{")
ENDLESS = attacks(
    SLOW,
    [
        *("\n", " ", "\t\n", "a", "1", ".", "!)", "*", "* ", "**a", "[", "[a", "]", "{", "(", "<", "<<", ">>", "#"),
        *("####", "$", "\\", "\\frac", "\\boxed{", "{}", "1,", "1,111,", "1 ", "-", "- a\n", "*\n", '"', "'", "`"),
        *("```", "~~~\n", "answer", "answer:", "Answer: \n", "answer is ", "```bash\n", "```bash\n\n```", "<answer>"),
        *("```python\n", "</answer>", "<think>", "<search>a</search>", "<information>", "p.", "p. p", "\n\n", "***"),
        *("a=", "\u00e9", "\0", "\ud800"),
    ],
)

CALLS = attacks(
    PAID,
    [
        *("[]", "[{}]", '[{"a": ""}]', '[{"a": null}]', '[{"a": []}]', '[{"a": {}}]', '[{"a": true}]', '[{"a": NaN}]'),
        *('[{"a": "."}]', '[{"a": "*"}]', '[{"a": "^-_/,. "}]', '[{"a": "a,b"}]', '[{"a": ["a", "b", 1, 2]}]'),
        *('[{"a": 1e400}]', '[{"a": 1}, {"a": 2}]', '[{"a": 1, "b": 2}]', '[{"a": "a", "": ""}]', '[{"A": "a"}]'),
    ],
)
