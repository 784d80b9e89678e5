"""Names, files and packages bring environments; mistakes are answered with what there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.registry import ENVS, describe, factory, find, list_envs, make, register
from agentrl.errors import ConfigError, EnvError, InvalidInput, UnknownName


class Shop(Env):
    """Sell things.

    Args:
        size: how many things.
    """

    def __init__(self, size: int = 3, kind: Literal["tea", "rice"] = "tea", path: Path | None = None) -> None:
        if size > 100:
            raise ValueError("size must be at most 100")
        self.size, self.kind, self.path = size, kind, path


@pytest.fixture(autouse=True)
def own_names(forget_names: Callable[[Any], None]):
    forget_names(ENVS)


def test_a_class_a_name_and_an_import_path_all_make_one():
    register("shop", Shop)
    register("late", "tests.envs.test_registry:Shop")
    assert all(isinstance(make(which), Shop) for which in (Shop, "shop", "late"))
    assert make("shop", size="7").size == 7
    assert make("shop", path="/tmp").path == Path("/tmp")


def test_every_instance_is_new():
    build = factory(Shop, size=2)
    assert build() is not build()


@pytest.mark.usefixtures("in_tmp_path")
def test_a_package_that_lies_here_and_is_not_installed_is_told() -> None:
    Path("my-env").mkdir()
    Path("my-env/pyproject.toml").touch()
    with pytest.raises(UnknownName, match=r"in the folder 'my-env' is not installed: pip install -e my-env; unknown"):
        find("my-env")


def test_an_unknown_name_lists_what_exists_and_the_nearest():
    with pytest.raises(UnknownName, match=r"'calculater'; did you mean 'calculator'\? \(known: .*castle.*gsm8k"):
        make("calculater")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"sise": 3},
            r"env\.sise = 3 is not known; did you mean env\.size\? \(known: env\.size, env\.kind, env\.path\)",
        ),
        ({"size": "big"}, r"env\.size = 'big': input should be a valid integer"),
        ({"kind": "coal"}, r"env\.kind = 'coal': input should be 'tea' or 'rice'"),
        ({"size": 101}, "size must be at most 100"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_what_is_allowed(options: dict[str, Any], words: str):
    register("shop", Shop)
    with pytest.raises(ConfigError, match=words) as caught:
        make("shop", **options)
    assert "environment 'shop'" in str(caught.value)


def test_a_missing_option_is_named():
    def build(size: int) -> Env:
        return Shop(size)

    with pytest.raises(ConfigError, match=r"env\.size is missing"):
        make(build)
    assert make(build, size=1).size == 1


def test_a_class_without_a_constructor_takes_no_options():
    class Plain(Env):
        """Plain."""

    with pytest.raises(ConfigError, match=r"env\.a = 1 is not known \(known: none\)"):
        make(Plain, a=1)
    assert isinstance(make(Plain), Plain)


def test_a_constructor_may_take_any_keywords():
    class Open(Env):
        def __init__(self, size: int = 1, **others: Any) -> None:
            self.given = (size, others)

    assert make(Open, size="2", colour="red").given == (2, {"colour": "red"})


def test_what_a_constructor_raises_is_named():
    def build() -> Env:
        raise KeyError("x")

    with pytest.raises(EnvError, match="can't be built: KeyError"):
        make(build)
    with pytest.raises(EnvError, match=r"which is no agentrl\.Env"):
        make(lambda: 3)  # type: ignore[arg-type,return-value]


def test_a_table_of_tasks_is_told_how_its_rows_are_given():
    """The names of its columns were taken for tasks."""

    class Table(list[str]):
        def iterrows(self) -> None: ...

    class Asking(Env):
        def tasks(self, split: str = "train") -> Any:
            return Table(["question", "answer"])

    with pytest.raises(EnvError, match=r"returned a Table: return its rows, as \.to_dict\('records'\) gives them"):
        list(calls.tasks(Asking(), "train"))


def test_an_environment_of_another_library_is_told_its_adapter():
    """ "No agentrl.Env" alone left a user of TRL or Gymnasium to find the adapter."""

    class OfTrl:
        def reset(self, **row: Any) -> None: ...
        def get_reward(self) -> float:
            return 1.0

    class OfGym:
        __module__ = "gymnasium.envs.toy"

    for made, adapter in ((OfTrl, "env=trl:OfTrl takes"), (OfGym, "env=gymnasium:… takes it")):
        with pytest.raises(EnvError, match=rf"which is no agentrl\.Env: {adapter}"):
            make(made)  # type: ignore[arg-type]


SOURCE = '''
from __future__ import annotations
import agentrl
from agentrl.envs.builtin.calculator import Calculator  # an import is not a definition

class Point: ...

class Till(agentrl.Env):
    """Look up a price."""

    def __init__(self, size: int = VALUE):
        self.size = size
'''


def test_a_files_class_can_be_named_or_left_out_where_there_is_one(tmp_path: Path):
    file = tmp_path / "my till.py"
    file.write_text(SOURCE.replace("VALUE", "1"))
    assert type(make(f"{file}:Till")).__name__ == "Till"
    assert make(str(file)).size == 1
    assert find(str(file)) is find(f"{file}:Till")


def test_an_edited_file_is_read_again(tmp_path: Path):
    file = tmp_path / "till.py"
    file.write_text(SOURCE.replace("VALUE", "1"))
    before = make(str(file))
    file.write_text(SOURCE.replace("VALUE", "200"))
    assert (before.size, make(str(file)).size) == (1, 200)


def test_mistakes_about_files_say_what_is_wrong(tmp_path: Path):
    file = tmp_path / "till.py"
    file.write_text(SOURCE.replace("VALUE", "1") + "\nclass Other(agentrl.Env): ...\nNOTHING = 3\n")
    with pytest.raises(UnknownName, match="there is no file"):
        make(f"{tmp_path}/none.py:Till")
    with pytest.raises(UnknownName, match=r"'Tall' in .*; did you mean 'Till'\?"):
        make(f"{file}:Tall")
    with pytest.raises(UnknownName, match=r"name one environment.*Till, Other"):
        make(str(file))
    with pytest.raises(EnvError, match="no environment"):
        make(f"{file}:NOTHING")
    file.write_text("1 / 0")
    with pytest.raises(EnvError, match="importing it raised ZeroDivisionError"):
        make(f"{file}:Till")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a package, for the test, that names these environments."""

    def write(names: dict[str, str]) -> None:
        package = tmp_path / "packaged-1.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: packaged\nVersion: 1\n")
        lines = [f"{name} = {target}\n" for name, target in names.items()]
        (package / "entry_points.txt").write_text("[agentrl.envs]\n" + "".join(lines))
        monkeypatch.syspath_prepend(tmp_path)

    return write


def test_an_installed_package_brings_environments_and_a_broken_one_spoils_only_its_own_name(
    install: Callable[..., None],
):
    shop = "tests.envs.test_registry:Shop"
    install({"packaged": shop, "broken": "no_such_module_at_all:Shop", "calculator": shop})
    assert isinstance(make("packaged"), Shop)
    assert not isinstance(make("calculator"), Shop), "what is built in goes first"
    with pytest.raises(EnvError, match=r"'broken' .no_such_module_at_all:Shop.*there is no module"):
        make("broken")
    infos = {info.name: info for info in list_envs()}
    assert "no_such_module_at_all" in infos["broken"].error
    assert infos["packaged"].description == "Sell things."


@pytest.mark.slow
def test_the_list_says_what_a_user_wants_to_know():
    built_in = {"calculator", "castle", "code", "gsm8k", "questions", "swe"}
    infos = {info.name: info for info in list_envs() if info.name in built_in}  # other tests register theirs
    assert set(infos) == built_in
    assert infos["questions"].rewards is None, "nothing is known before it has a file of questions"
    assert all(info.description and info.splits and info.expert and not info.error for info in infos.values())
    options = {option.name: option for option in infos["calculator"].options}
    assert (options["min_steps"].default, options["min_steps"].type_name) == (2, "int")
    assert "shortest" in options["min_steps"].description
    assert describe(Shop).name == "Shop"
    assert (infos["calculator"].tools, infos["calculator"].rewards) == (("calculator",), ("correct",))
    assert (infos["castle"].max_turns, infos["castle"].rewards) == (120, ())
    assert "Docker" in infos["swe"].needs


@pytest.mark.parametrize("name", ["", "a:b", "a/b"])
def test_a_name_that_would_look_like_a_file_is_refused(name: str):
    with pytest.raises(InvalidInput, match="no valid environment name"):
        register(name, Shop)
    with pytest.raises(InvalidInput, match="import path"):
        register("fine", "not a target")


def test_the_public_functions_are_these():
    assert agentrl.make is make
    assert agentrl.register is register


# ------------------------------------------------------------------------------------------------ versions


class OldShop(Shop):
    version = "1"


class NewShop(Shop):
    version = "2"


@pytest.fixture
def shops(install: Callable[..., None]) -> None:
    """Two versions of an environment, as an installed package names them."""
    install({f"kiosk-v{n}": f"tests.envs.test_registry:{name}" for n, name in VERSIONS})


VERSIONS = [(2, "OldShop"), (10, "NewShop")]


@pytest.mark.usefixtures("shops")
def test_a_name_without_a_version_is_the_newest_one(caplog: pytest.LogCaptureFixture):
    assert isinstance(make("kiosk"), NewShop)
    assert isinstance(make("kiosk-v10"), NewShop)
    assert caplog.messages == []


@pytest.mark.usefixtures("shops")
def test_an_outdated_version_is_made_with_one_warning_that_names_the_newest(caplog: pytest.LogCaptureFixture):
    assert isinstance(make("kiosk-v2"), OldShop)
    assert isinstance(make("kiosk-v2"), OldShop)
    assert caplog.messages == ["env=kiosk-v2 is outdated: the newest version is kiosk-v10"]


@pytest.mark.usefixtures("shops")
def test_the_list_marks_outdated_versions_and_warns_of_none(caplog: pytest.LogCaptureFixture):
    newer = {info.name: info.newer for info in list_envs()}
    assert (newer["kiosk-v2"], newer["kiosk-v10"], newer["calculator"]) == ("kiosk-v10", "", "")
    assert caplog.messages == []


@pytest.mark.usefixtures("shops")
def test_a_version_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UnknownName, match=r"no environment 'kiosk-v3' \(versions: kiosk-v2, kiosk-v10\)"):
        make("kiosk-v3")
    with pytest.raises(UnknownName, match="nothing-v1"):
        make("nothing-v1")


@pytest.mark.slow
def test_a_version_may_be_asked_of_an_environment_without_one_in_its_name():
    assert type(make("calculator-v1")) is type(make("calculator"))
    with pytest.raises(UnknownName, match="no environment 'calculator-v7': 'calculator' has the version 1"):
        make("calculator-v7")
