"""`Locator`: one name for a Function, and one place to find it."""

import functools
import pickle
import sys
from multiprocessing import spawn
from types import SimpleNamespace

import pytest
import torch
from tests.copies import run_python

from pullback import complete
from pullback.errors import ArgumentError
from pullback.recording import Locator, find, load_script
from pullback.recording.locator import definition, only_defines


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * ctx.saved_tensors[0] ** 2 * cotangent


@pytest.mark.parametrize("target", [torch.sin, torch.nn.functional.relu, pickle.dumps, find])
def test_what_is_named_is_found(target) -> None:
    locator = Locator.of(target)
    assert locator.names(target)
    assert find(locator) is target
    assert Locator.from_data(locator.to_data()) == locator


def test_a_partial_goes_by_the_name_of_its_function() -> None:
    assert Locator.of(functools.partial(torch.sin)) == Locator.of(torch.sin)


def test_a_completed_function_is_named_after_its_original() -> None:
    made = complete(Cube)
    locator = Locator.of(made)
    assert locator.completed
    assert locator.name == f"{__name__}:Cube (completed)"
    assert locator.names(Cube)
    assert not locator.names(made)


@pytest.mark.parametrize("name", [None, "package.train"])
def test_a_script_in_a_spawned_process_is_the_script(name, tmp_path, monkeypatch) -> None:
    file = tmp_path / "train.py"
    file.write_text("class Scale: pass\n")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setitem(sys.modules, "__mp_main__", None)
    spawn._fixup_main_from_path(str(file))  # as a process does that is started anew
    main = sys.modules["__main__"]
    main.__spec__ = name and SimpleNamespace(name=name)  # of `python -m`
    locator = Locator.of(main.Scale)
    assert locator.name == f"{name or file}:Scale"
    assert locator.names(main.Scale)


def test_a_local_class_is_named_with_its_mend() -> None:
    class Local(Cube):
        pass

    assert not Locator.of(Local).names(Local)
    with pytest.raises(ArgumentError, match="defined inside test_a_local_class"):
        find(Locator.of(Local))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"module": "a"},
        {"module": 1, "qualname": "b"},
        {"module": "a", "qualname": "b", "completed": 1},
        {"module": "a", "qualname": "b", "other": ""},
        [],
    ],
)
def test_other_data_is_refused(data) -> None:
    with pytest.raises(TypeError):
        Locator.from_data(data)


def test_a_script_is_named_by_its_file_in_every_process(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from pullback.recording import Locator\n"
        "class F: pass\n"
        "print(Locator.of(F).name)\n"
        "print(Locator.of(F).names(F))\n"
    )
    done = run_python(str(script))
    assert done.stdout.split() == [f"{script}:F", "True"]
    loaded = load_script(str(script), "F").F
    assert Locator.of(loaded).name == f"{script}:F"
    assert Locator.of(loaded).names(loaded)
    assert find(Locator.of(loaded)) is loaded


@pytest.mark.parametrize(
    "made",
    [
        "class F: pass",
        "for _ in [1]:\n    class F: pass",
        "F, G = type('F', (), {}), 1",
        "if __name__ == '__main__':\n    class F: pass",  # which nobody takes out of a script
        "globals()['F'] = type('F', (), {})",
        "def make():\n    global F\n    class F: pass\nmake()",
        "import sys, types\nmade = sys.modules['made'] = types.ModuleType('made')\n"
        "exec('class F: pass', vars(made))\nF = made.F",
    ],
)
def test_a_name_leads_to_what_another_process_finds_there(made, tmp_path) -> None:
    script = tmp_path / "train.py"
    asks = "from pullback.recording import Locator\nprint(Locator.of(F).names(F))\n"
    script.write_text(f"{made}\n{asks}")
    assert run_python(str(script)).stdout.strip() == str(made.startswith(("class", "for", "F,")))


def test_a_script_in_an_archive_defines_nothing_that_is_found(tmp_path) -> None:
    assert definition(str(tmp_path / "program.pyz" / "__main__.py"), "F") is None


def test_what_is_taken_out_of_a_script_one_by_one_is_of_one_module(tmp_path) -> None:
    """A Function that asks whether an argument is of a class of the script must be answered yes."""
    path = tmp_path / "train.py"
    path.write_text(
        "from __future__ import annotations\n"
        "class Config: pass\n"
        "class F:\n    config: Config\n"
        "class Later:\n    later: NoSuchType\n    made = Config()\n"
    )
    function = load_script(str(path), "F").F
    later = load_script(str(path), "Later")
    assert type(later.Later.made) is find(Locator.at(str(path), "Config"))
    assert later.F is function


def test_the_main_file_of_a_package_imports_from_it(tmp_path) -> None:
    folder = tmp_path / "package_with_main"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "factor.py").write_text("TWO = 2\n")
    main = folder / "__main__.py"  # run by `python -m package_with_main`
    main.write_text("from .factor import TWO\nclass F:\n    factor = TWO\nprint('trained')\n")
    assert load_script(str(main), "F").F.factor == 2
    assert not only_defines(str(main))


@pytest.mark.parametrize(
    "fails", ["import no_such_module_at_all as m", "import sys; m = sys.exit(3)"]
)
def test_a_script_whose_definitions_fail_says_so(fails: str, tmp_path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(f"{fails}\nclass F(m.Base): pass\n")
    with pytest.raises(ArgumentError, match="cannot be taken out"):
        load_script(str(path), "F")
