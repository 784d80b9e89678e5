import pytest

from solve import Index, NoSolution, resolve

INDEX = Index(
    """
    web 1: core
    web 2: core>=2
    db 2: core<2
    core 1
    core 2
    """.replace("    ", "")
)


def test_the_newest_versions():
    assert resolve(INDEX, ["web"]) == {"core": 2, "web": 2}


def test_an_older_dependency():
    assert resolve(INDEX, ["db"]) == {"core": 1, "db": 2}


def test_constraints():
    assert resolve(INDEX, ["web<2"]) == {"core": 2, "web": 1}


def test_an_unknown_package():
    with pytest.raises(NoSolution):
        resolve(INDEX, ["nothing"])


def test_two_that_exclude_each_other():
    with pytest.raises(NoSolution):
        resolve(INDEX, ["core==1", "core==2"])
