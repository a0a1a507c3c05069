"""One file owns what is private of torch, and refuses a torch that it does not know."""

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pullback
from pullback.internal import torch as inside

SOURCE = Path(pullback.__file__).parent
OWNER = SOURCE / "internal" / "torch.py"
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != OWNER)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def dotted(node: ast.expr) -> list[str]:
    """``a.b.c`` as a list of names; empty for what does not begin with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return [*base, node.attr] if base else []
    return []


def private_names(source: str) -> Iterator[str]:
    """Every private part of torch that a module names: imported, or reached from an import."""
    tree = ast.parse(source)
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    bound[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    yield from (part for part in alias.name.split(".") if is_private(part))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                bound[alias.asname or alias.name] = path
                yield from (path for part in path.split(".") if is_private(part))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            first, *rest = dotted(node) or [""]
            if first in bound:
                yield ".".join([bound[first], *rest])


def test_the_search_finds_each_way_to_name_a_private_part() -> None:
    found = private_names(
        textwrap.dedent("""
            import torch, torch._dynamo
            import torch.nn as nn
            from torch.utils import _pytree as pytree
            from torch._subclasses.fake_tensor import FakeTensor
            from torch.autograd import forward_ad
            torch._C._functorch.get_unwrapped(torch.nn.functional.relu(nn._reduction))
            forward_ad._current_level, torch.__version__, own._private, self._x.torch
        """)
    )
    assert set(found) == {
        "_dynamo",
        "torch.utils._pytree",
        "torch._subclasses.fake_tensor.FakeTensor",
        "torch._C",
        "torch._C._functorch",
        "torch.nn._reduction",
        "torch.autograd.forward_ad._current_level",
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_other_file_names_a_private_part_of_torch(path: Path) -> None:
    assert sorted(set(private_names(path.read_text(encoding="utf-8")))) == []


def test_what_is_exported_is_there() -> None:
    assert [name for name in inside.__all__ if getattr(inside, name, None) is None] == []


VERSIONS = ["2.6.1", "2.6.1+cpu", "1.13.1", "3.0.0"]
MISSING = ["torch._C._functorch.unwrap_if_dead", "torch.autograd.forward_ad._current_level"]
# A room that needs torch is imported after each change of torch, in one process for all: to import
# torch takes far longer. What was imported of the package in vain is forgotten in between.
PROGRAM = """
import json, sys, traceback
import torch
answers = []
for change, back in json.loads(sys.argv[1]):
    exec(change)
    try:
        import pullback.tensor
        answers.append("imported")
    except Exception:
        answers.append(traceback.format_exc())
    exec(back)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pullback"]:
        del sys.modules[name]
import pullback.tensor
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """How the import ends, by the version that torch says it has, or by the name it lacks."""
    changes = {
        version: (f"torch.__version__, real = type(torch.__version__)({version!r}), "
                  "torch.__version__", "torch.__version__ = real")
        for version in VERSIONS
    }  # fmt: skip
    changes |= {name: (f"real = {name}; del {name}", f"{name} = real") for name in MISSING}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(changes.values()))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(changes, json.loads(run.stdout), strict=True))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_torch_out_of_range_is_refused_with_the_versions_that_work(
    version: str, answers: dict[str, str]
) -> None:
    answer = answers[version]
    assert "pullback.errors.TorchVersionError: This version of torch is not supported." in answer
    assert f"given:    torch {version}" in answer
    assert f"torch {inside.OLDEST} or newer, before 3; tested up to {inside.TESTED}" in answer
    assert "pip install 'torch>=2.7" in answer


@pytest.mark.parametrize("name", MISSING)
def test_a_torch_that_lacks_a_name_is_refused_by_that_name(
    name: str, answers: dict[str, str]
) -> None:
    answer = answers[name]
    assert "pullback.errors.TorchVersionError: This torch lacks what pullback needs" in answer
    assert name.rpartition(".")[2] in answer.partition("TorchVersionError: ")[2].splitlines()[0]


def test_the_installed_torch_is_not_newer_than_what_is_said_to_be_tested() -> None:
    assert torch.__version__ < f"{inside.TESTED}.999"


def test_forward_level_follows_the_levels_of_torch() -> None:
    assert inside.forward_level() == -1
    with torch.autograd.forward_ad.dual_level():
        assert inside.forward_level() == 0
    assert inside.forward_level() == -1


def test_an_export_is_told() -> None:
    seen = []

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(inside.is_exporting())
            return x + 1

    Model()(torch.ones(2))
    torch.export.export(Model(), (torch.ones(2),), strict=False)
    assert seen[0] is False
    assert all(seen[1:])
    assert len(seen) > 1
