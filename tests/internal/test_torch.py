"""One file owns what is private of torch, and refuses a torch that it does not know."""

import ast
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
import torch

import pullback
from pullback.internal import torch as inside

SOURCE = Path(pullback.__file__).parent
OWNER = SOURCE / "internal" / "torch.py"
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != OWNER)
# Of the standard library and pytest.
FOREIGN = {"_asdict", "_exit", "_field_defaults", "_fields", "_replace", "_tw"}
ALLOWED = {
    # Defined anew by an own class: there is no other way to change what torch does there.
    ("gradients/_module.py", "super()._apply"),
    # Of Variables and nodes of the tape.
    ("tape/_context.py", "value._version"),
    ("tape/tensor.py", "node._next"),
    # Asked of anything, by a file that is loaded where neither torch nor pullback need be.
    ("recording/locator/_locator.py", "_init_fn"),
    ("recording/locator/_locator.py", "_opoverload"),
}
MODULE = re.compile(r"\btorch(?:\.\w+)*\._[a-z]\w*")
ATTRIBUTE = re.compile(r"(?<=[\w)\]]\.)_[a-z]\w*")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()


@torch.library.custom_op("pullback_tests::nothing", mutates_args=())
def nothing(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def names_of_torch() -> frozenset[str]:
    """The private attributes of what torch hands out: tensors, nodes, modules, operators."""
    x = torch.ones(1, requires_grad=True)
    packet = torch.ops.aten.add
    objects = (
        x, x.untyped_storage(), torch.Generator(), x.exp().grad_fn, Nothing.apply(x).grad_fn,
        Nothing, torch.nn.Linear(1, 1), torch.optim.SGD([x]), packet, packet.Tensor, nothing,
        torch.fx.symbolic_trace(torch.nn.Identity()),
    )  # fmt: skip
    return frozenset(name for value in objects for name in dir(value) if is_private(name))


OF_TORCH = names_of_torch()


def dotted(node: ast.expr) -> list[str]:
    """``a.b.c`` as a list of names; empty for what does not begin with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return [*base, node.attr] if base else []
    return []


def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def own_attributes(nodes: Sequence[ast.AST]) -> set[str]:
    """The attributes that the classes of a module define or set, or name in their slots."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    found.add(part.name)
                for name in ast.walk(part) if isinstance(part, (ast.Assign, ast.AnnAssign)) else ():
                    if isinstance(name, (ast.Name, ast.Constant)):
                        found.add(name.id if isinstance(name, ast.Name) else str(name.value))
    return found


def private_names(source: str, own: Collection[str] = ()) -> Iterator[str]:
    """Every private part of torch that a module names.

    Imported, reached from an import, an attribute of what torch hands out, or in a text: of a
    module, an attribute, a program.

    Arguments:
        source: of the module.
        own: private attributes that the package defines.
    """
    nodes = nodes_of(source)
    bound, others = {}, set()
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    bound[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    yield from (part for part in alias.name.split(".") if is_private(part))
                else:
                    others.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                bound[alias.asname or alias.name] = path
                yield from (path for part in path.split(".") if is_private(part))
    here = own_attributes(nodes)
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            first, *rest = dotted(node) or [""]
            if first in bound:
                yield ".".join([bound[first], *rest])
            elif first not in others and node.attr not in FOREIGN:
                theirs = node.attr not in own or (node.attr in OF_TORCH and node.attr not in here)
                if theirs and node.attr not in here:
                    yield ast.unparse(node)
    documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) and id(node) not in documented else None
        if isinstance(text, str):
            yield from MODULE.findall(text)
            yield from (name for name in ATTRIBUTE.findall(text) if name in OF_TORCH)
            if text in OF_TORCH and text not in here:
                yield text


def test_the_search_finds_each_way_to_name_a_private_part() -> None:
    found = private_names(
        textwrap.dedent("""
            "Says torch._C in its own docstring."
            import os, torch, torch._dynamo
            import torch.nn as nn
            from torch.utils import _pytree as pytree
            from torch._subclasses.fake_tensor import FakeTensor
            from torch.autograd import forward_ad
            torch._C._functorch.get_unwrapped(torch.nn.functional.relu(nn._reduction))
            forward_ad._current_level, torch.__version__, own._private, self._x.torch
            os._exit, tensor._version, getattr(node, "_forward_cls"), anything._unheard_of
            sys.modules["torch._inductor.config"], "y = torch.utils._pytree.tree_leaves(x)"
            program = "print(node._input_metadata, text._of_ours)"

            class Ours:
                __slots__ = ("_grad",)
                def read(self): return self._grad, self._parameters
        """),
        own={"_private", "_x", "_grad"},
    )
    assert (
        set(found)
        == {
            "_dynamo",
            "torch.utils._pytree",
            "torch._subclasses.fake_tensor.FakeTensor",
            "torch._C",
            "torch._C._functorch",
            "torch.nn._reduction",
            "torch.autograd.forward_ad._current_level",
            "tensor._version",
            "_forward_cls",
            "anything._unheard_of",
            "torch._inductor",
            "_input_metadata",
            "self._parameters",
        }
        | {"_pytree"} & OF_TORCH
    )


def test_no_other_file_names_a_private_part_of_torch() -> None:
    sources = {
        path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in FILES
    }
    own = {name for source in sources.values() for name in own_attributes(nodes_of(source))}
    found = {
        (place, name)
        for place, source in sources.items()
        if re.search(r"\btorch\b", source)
        for name in private_names(source, own)
    }
    assert sorted(found - set(ALLOWED)) == []


def test_what_is_exported_is_there() -> None:
    assert [name for name in inside.__all__ if getattr(inside, name, None) is None] == []


VERSIONS = ["2.6.1", "2.6.1+cpu", "1.13.1", "3.0.0"]
MISSING = [
    "torch._C._functorch.unwrap_if_dead",
    "torch.autograd.forward_ad._current_level",
    "torch._library.custom_ops.CustomOpDef",
]
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
