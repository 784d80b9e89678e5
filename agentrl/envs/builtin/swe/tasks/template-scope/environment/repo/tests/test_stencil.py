import pytest

from stencil import Template, TemplateError


def test_values():
    assert Template("Hello {{ user.name }}!").render({"user": {"name": "Ada"}}) == "Hello Ada!"


def test_a_loop():
    assert Template("{% for x in xs %}{{ loop.index }}{{ x }} {% endfor %}").render({"xs": "ab"}) == "1a 2b "


def test_a_condition():
    template = Template("{% if on %}yes{% endif %}")
    assert template.render({"on": True}) == "yes"
    assert template.render() == ""


def test_an_assignment():
    assert Template('{% set x = "y" %}{{ x }}').render() == "y"


def test_an_open_block():
    with pytest.raises(TemplateError):
        Template("{% for x in xs %}")
