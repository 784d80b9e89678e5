from stencil import Template


def test_a_loop_does_not_change_an_outer_variable():
    template = Template("{% set t = 'Shop' %}{% for t in ts %}{{ t }},{% endfor %}{{ t }}")
    assert template.render({"ts": ["a", "b"]}) == "a,b,Shop"


def test_the_values_that_are_given_stay():
    values = {"xs": [1, 2], "x": 0}
    template = Template("{% set y = 5 %}{% for x in xs %}{{ x }}{% endfor %}{{ x }}")
    assert template.render(values) == "120"
    assert values == {"xs": [1, 2], "x": 0}


def test_the_outer_loop_goes_on_counting_after_an_inner_one():
    template = Template("{% for a in xs %}{% for b in xs %}{% endfor %}{{ loop.index }}{% endfor %}")
    assert template.render({"xs": "xyz"}) == "123"


def test_an_assignment_lasts_for_its_round():
    template = Template("{% for x in xs %}{{ seen }}{% set seen = x %}{{ seen }};{% endfor %}{{ seen }}")
    assert template.render({"xs": [1, 2], "seen": "-"}) == "-1;-2;-"


def test_a_condition_has_no_scope_of_its_own():
    assert Template("{% if on %}{% set x = 3 %}{% endif %}{{ x }}").render({"on": 1}) == "3"


def test_a_variable_named_loop_survives():
    assert Template("{% for x in xs %}{% endfor %}{{ loop }}").render({"xs": "a", "loop": "mine"}) == "mine"
