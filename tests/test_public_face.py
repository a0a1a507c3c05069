"""What a user sees first: the names, what importing costs, and what a missing extra answers."""

import importlib
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

import pullback

SOURCE = Path(pullback.__file__).parent
ROOMS = sorted(
    f"pullback.{path.parent.name}"
    for path in SOURCE.glob("*/__init__.py")
    if "__all__" in path.read_text(encoding="utf-8")
)
MODULES = sorted(
    ".".join(("pullback", *path.relative_to(SOURCE).with_suffix("").parts))
    for path in SOURCE.rglob("*.py")
    if path.name not in {"__init__.py", "__main__.py", "_triton.py"}
    and (path.parent / "__init__.py").exists()
)


def exported_order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Constants, then types, then functions, each in natural order, as ruff's RUF022 has it."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    parts = re.findall(r"\d+|\D+", name)
    return kind, [(int(part), "") if part.isdigit() else (10**9, part) for part in parts]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", ["pullback", *ROOMS, *MODULES])
def test_all_is_sorted_and_every_name_of_it_is_there(name: str) -> None:
    module = importlib.import_module(name)
    exported = list(module.__all__)
    assert exported == sorted(exported, key=exported_order)
    assert len(set(exported)) == len(exported)
    for attribute in exported:
        getattr(module, attribute)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_shows_what_it_exports_and_nothing_else(name: str) -> None:
    room = importlib.import_module(name)
    shown = {
        attribute
        for attribute, value in vars(room).items()
        if not attribute.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert shown - set(room.__all__) == set()


def test_the_face_lists_its_names() -> None:
    assert {name for name in dir(pullback) if not name.startswith("_")} >= set(pullback.__all__)
    assert {"Function", "check", "complete", "completed", "custom_vjp"} <= set(pullback.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        pullback.no_such_name


def test_importing_pullback_imports_no_torch() -> None:
    answer = run("""
        import sys
        import pullback, pullback.errors
        print([name for name in ("torch", "numpy", "numba") if name in sys.modules])
    """)
    assert answer.stdout.strip() == "[]", answer.stderr


def test_a_tensor_name_imports_torch_when_it_is_used() -> None:
    answer = run("""
        import sys
        import pullback
        assert "torch" not in sys.modules
        print(issubclass(pullback.Function, sys.modules["torch"].autograd.Function))
    """)
    assert answer.stdout.strip() == "True", answer.stderr


@pytest.mark.parametrize("name", ["Function", "check", "complete", "completed", "custom_vjp"])
def test_a_missing_extra_answers_with_the_command_that_installs_it(name: str) -> None:
    answer = run(f"""
        import sys

        class NoTorch:
            def find_spec(self, fullname, path=None, target=None):
                if fullname.partition(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name=fullname)

        sys.meta_path.insert(0, NoTorch())
        import pullback
        from pullback.errors import MissingExtraError
        try:
            pullback.{name}
        except MissingExtraError as error:
            print(error)
    """)
    assert "pip install 'pullback[tensor]'" in answer.stdout, answer.stderr


def test_the_order_knows_constants_types_and_functions() -> None:
    names = ["B", "check", "ALL", "Case", "axis10", "axis2"]
    assert sorted(names, key=exported_order) == ["ALL", "B", "Case", "axis2", "axis10", "check"]
