"""A stranger's chat template can say no, and can't hold up or fill the memory of whoever renders it."""

from __future__ import annotations

import pytest
from jinja2 import TemplateError

from agentrl.sessions.renderers import bounded_template
from agentrl.sessions.renderers.bounded_template import BoundedTemplate

NESTED = "".join(f"{{% for {one} in range(9999) %}}" for one in "abc") + "{% endfor %}" * 3
DOUBLED = (
    "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x JOIN ns.x %}{% endfor %}{{ ns.x }}"
)


ENDLESS = [
    NESTED,
    DOUBLED.replace("JOIN", "+"),
    DOUBLED.replace("JOIN", "~"),
    "{{ 'a' * 99999999999 }}",
    "{{ [1] * 99999999999 }}",
    "{{ 9 ** 99999999 }}",
    "{{ '%99999999999d' % 1 }}",
    "{% for a in 'a' * 100000 %}{% for b in 'b' * 100000 %}{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_what_would_take_too_long_or_too_much_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_template, "MOST_ROUNDS", 50_000)
    template = BoundedTemplate(source, {}, {})
    with pytest.raises(TemplateError):
        template.render()


def test_loops_sums_and_joined_texts_are_otherwise_jinjas_own() -> None:
    source = (
        "{% for a in items %}{{ loop.index }}/{{ loop.length }}{{ a ~ '-' ~ (1 + 2) }}{% if loop.last %}.{% endif %}"
        "{% if a == 'y' %}{% continue %}{% endif %}{{ ',' * 2 }}{% endfor %}"
        "{% for k, v in m.items() %}{{ k + v }}{{ '%s%3d' % (k, 1) }}{% endfor %}"
        "{% for x in items | select('equalto', 'x') %}{{ x }}{% else %}none{% endfor %}"
        "{% for x in missing %}{% endfor %}"
    )
    rendered = BoundedTemplate(source, {}, {}).render(items=["x", "y"], m={"k": "v"})
    assert rendered == "1/2x-3,,2/2y-3.kvk  1x"
