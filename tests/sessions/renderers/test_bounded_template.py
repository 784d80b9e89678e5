"""A stranger's chat template can say no, and can't hold up or fill the memory of whoever renders it."""

from __future__ import annotations

import pytest
from jinja2 import Environment, TemplateError

from agentrl.sessions.renderers import bounded_template
from agentrl.sessions.renderers.bounded_template import BoundedTemplate

NESTED = "".join(f"{{% for {one} in range(9999) %}}" for one in "abc") + "{% endfor %}" * 3
DOUBLED = (
    "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x JOIN ns.x %}{% endfor %}{{ ns.x }}"
)


WIDE = [
    *(f"'x' | {one}" for one in ("center(FAR)", "center(width=FAR)", "indent(FAR, true)", "batch(FAR, 1)|list|string")),
    *(f"'x'.{one}(FAR)" for one in ("center", "ljust", "rjust", "zfill")),
    *(
        "'\\t'.expandtabs(FAR)",
        "'{:FAR}'.format(1)",
        "'{:{}}'.format(1, FAR)",
        "'%FARd' | format(1)",
        "1.5 | round(FAR)",
    ),
    *("'x'.encode().center(FAR)", "(5).to_bytes(FAR, 'big')", "'x' | indent('a' * 99999999, true) ~ ('a' * 99999999)"),
    "'{a:FAR}'.format_map({'a': 1})",
]
LONG = "{% set x = 'a' * 999999 %}"
SHARED = "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
KEPT = (
    "{% set t = 'ab ' * 999 %}{% set ns = namespace(x=[]) %}"
    "{% for i in range(9000) %}{% set ns.x = [ns.x, NEW] %}{% endfor %}"
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
    *(f"{{{{ {one.replace('FAR', '99999999999')} }}}}" for one in WIDE),
    LONG + "{{ x | replace('a', x) }}",
    LONG + "{{ x | replace(new=x, old='a') }}",
    LONG + "{{ x.replace('a', x) }}",
    LONG + "{{ x | list | join(x) }}",
    LONG + "{{ x.join(x) }}",
    LONG + "{{ x.join(x | map('upper')) }}",
    LONG + "{{ x.translate({97: x}) }}",
    LONG + "{{ ('{0}' * 9999).format(x) }}",
    LONG + "{{ ('%(a)s' * 9999) % {'a': x} }}",
    LONG + "{{ ([x | list] * 9999) | sum(start=[]) }}",
    LONG + "{% for a in range(9999) %}{{ x }}{% endfor %}",
    LONG + "{% macro m() %}{% for a in range(9999) %}{{ x }}{% endfor %}{% endmacro %}{{ m() | length }}",
    LONG + "{% set y %}{% for a in range(9999) %}{{ x }}{% endfor %}{% endset %}{{ y | length }}",
    LONG + "{% set y = x + 'a' %}{% for a in range(40000) %}{% if x + 'a' == y %}{% endif %}{% endfor %}",
    LONG + "{% for a in range(40000) %}{% if x.upper() %}{% endif %}{% endfor %}",
    LONG + "{% for a in range(40000) %}{% if x[1:] %}{% endif %}{% endfor %}",
    LONG + "{% for a in range(40000) %}{% if 'b' in x %}{% endif %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "{% for a in [1] recursive %}{% if loop.depth < 30 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    *(SHARED + one for one in ("{{ ns.x }}", "{{ ns }}", "{{ ns.x | string }}", "{{ ns.x ~ '' }}", "{{ ns.x == ns }}")),
    *(SHARED + one for one in ("{{ ns.x | tojson }}", "{{ ns.x | pprint }}", "{{ ns.x | join }}", "{{ '%s' % ns.x }}")),
    "{{ ([[[1] * 999] * 999] | tojson(indent=999)) }}",
    *(KEPT.replace("NEW", one) for one in ("'a' * 999", "[1] * 999", "'\U0001f600' * 999", "t[1:]", "t.split(' ')")),
    *(KEPT.replace("NEW", one * 99 + "1") for one in ("[], ", "{1: i}, ", "(i,), ")),
    "{% for i in range(9000) %}" + "{{ i }}" * 99 + "{% endfor %}",
    "{% macro m(n) %}" + "{{ n }}" * 999 + "{% endmacro %}{% for i in range(900) %}{% set x = m(i) %}{% endfor %}",
]


@pytest.mark.parametrize("source", ENDLESS)
@pytest.mark.slow
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


def test_filters_and_methods_make_what_jinjas_own_make() -> None:
    source = (
        "{{ 'a' | center(5) }}{{ 'a'.ljust(3) }}{{ 'a\nb' | indent(2, true) }}"
        "{{ items | join(', ') }}{{ '-'.join(items) }}"
        "{{ 'aXb'.split('X') }}{{ 'aXb' | replace('X', '--') }}"
        "{{ '{:>4}{}'.format('a', 'b') }}{{ '%3s' | format('a') }}"
        "{{ items | map('upper') | list }}{{ m | tojson(indent=2) }}{{ m.items() | list }}"
        "{{ [[1], [2]] | sum(start=[]) }}"
        "{{ items[1:] }}{{ 'x' in items }}{{ items == ['x', 'y'] }}{{ missing == 1 }}{{ missing is defined }}"
        "{{ items | select('in', ['y']) | first }}{{ items | reverse | list }}{{ 2.567 | round(2) }}"
        "{{ 'a b' | wordcount }}"
        "{% macro m2(a) %}<{{ a }}>{% endmacro %}{{ m2(items) }}{% set b %}{{ m2(1) }}{% endset %}{{ b }}"
        "{% for a in [1, [2, 3]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}{{ none }}"
    )
    values = {"items": ["x", "y"], "m": {"k": [1, {"a": None}]}}
    assert BoundedTemplate(source, {}, {}).render(**values) == Environment().from_string(source).render(**values)
