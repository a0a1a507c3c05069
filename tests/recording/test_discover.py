"""Finding the Functions of a package, and inputs for them by trial."""

import inspect

import pytest
import torch

from pullback.errors import ArgumentError
from pullback.recording import _explore, discover, forms
from pullback.recording._guess import guesses
from pullback.recording.locator import Locator

PACKAGE = """
import torch

class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x * alpha
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.alpha, None

class Split(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, dim: int, training: bool = True):
        return x.cumsum(dim)
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None, None

class Picky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, conversation):
        raise TypeError("only conversations")

class Outer:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()
        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

def make():
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
    return Local

LOCAL = make()
"""
KILLER = """
import os
import torch

class Killer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        os._exit(3)
"""


@pytest.fixture
def package(tmp_path, monkeypatch) -> str:
    folder = tmp_path / "sample_package_of_functions"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("print('noise at import')\n")
    (folder / "functions.py").write_text(PACKAGE)
    (folder / "deep" / "__init__.py").write_text("")
    (folder / "deep" / "killer.py").write_text(KILLER)
    (folder / "broken.py").write_text("import no_such_module_here\n")
    (folder / "leaves.py").write_text("raise SystemExit('bye')\n")
    (folder / "__main__.py").write_text("raise RuntimeError('must not run')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder.name


def test_a_package_is_searched_to_the_end(package, capfd) -> None:
    found = discover(package)
    by_name = {item.locator.qualname: item for item in found.recording}
    assert set(by_name) == {"Plain", "Split", "Picky", "Outer.Nested", "make.<locals>.Local",
                            "Killer"}  # fmt: skip
    assert by_name["Plain"].calls
    assert by_name["Split"].calls
    assert by_name["Outer.Nested"].calls
    (reason,) = by_name["Picky"].reasons
    assert "no inputs found for (conversation)" in reason
    assert "only conversations" in reason
    assert "inside a function" in next(iter(by_name["make.<locals>.Local"].reasons))
    assert "status 3" in next(iter(by_name["Killer"].reasons))
    assert sorted(line.partition(":")[0] for line in found.problems) == [
        f"{package}.broken",
        f"{package}.leaves",
    ]
    assert "noise" not in capfd.readouterr().out
    function = by_name["Plain"].load()
    args, _ = by_name["Plain"].arguments(0)
    assert torch.isfinite(function.apply(*args)).all()


@pytest.mark.usefixtures("copied_workers")
def test_one_function_only(package) -> None:
    found = discover(f"{package}.functions", only="Split")
    assert [item.locator.qualname for item in found.recording] == ["Split"]


class Definite(torch.autograd.Function):
    @staticmethod
    def forward(ctx, covariance):
        factor = torch.linalg.cholesky(covariance)
        ctx.save_for_backward(torch.cholesky_inverse(factor))
        return 2 * factor.diagonal().log().sum()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_tensors[0]


class Shares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, parts, power):
        if ((parts.sum(-1) - 1).abs() > 1e-4).any():
            raise ValueError("not normalised")
        ctx.power = power
        ctx.save_for_backward(parts)
        return (parts**power).sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (parts,) = ctx.saved_tensors
        return cotangent[..., None] * ctx.power * parts ** (ctx.power - 1), None


class Knots(torch.autograd.Function):
    @staticmethod
    def forward(ctx, knots, x):
        if knots.shape[-1] < 2 or (knots.diff() <= 0).any():
            raise ValueError("knots must increase")
        ctx.save_for_backward(knots, x)
        return x * knots.sum()

    @staticmethod
    def backward(ctx, cotangent):
        knots, x = ctx.saved_tensors
        return (cotangent * x).sum().expand_as(knots), cotangent * knots.sum()


@pytest.mark.parametrize("function", [Definite, Shares, Knots])
def test_what_forward_insists_on_is_tried_where_plain_numbers_are_refused(function, tmp_path):
    locator = Locator.of(function)
    assert _explore._try(function, locator, tmp_path, []) == {}
    assert list(tmp_path.glob("call-*.pt"))


def test_no_such_package_is_named() -> None:
    with pytest.raises(ArgumentError, match="There is no package no_such_package_at_all"):
        discover("no_such_package_at_all")


@pytest.mark.parametrize(
    ("signature", "fits"),
    [
        (lambda x: None, lambda x: x.shape == (3, 4)),
        (lambda x, dim: None, lambda x, dim: dim == -1),
        (lambda x, alpha_: None, lambda x, alpha_: alpha_ == 0.5),
        (lambda x, training=False: None, lambda x, training: training is False),
        (lambda scores, target: None, lambda s, target: target.dtype == torch.int64),
        (lambda x, weight, bias: None, lambda x, w, b: w.shape == (4, 4) and b.shape == (4,)),
    ],
)
def test_first_guesses_follow_names_and_defaults(signature, fits) -> None:
    parameters = list(inspect.signature(signature).parameters.values())
    assert fits(*next(guesses(parameters)))


def test_guesses_are_the_same_each_time() -> None:
    parameters = list(inspect.signature(lambda x, y: None).parameters.values())
    for first, second in zip(guesses(parameters), guesses(parameters), strict=True):
        pairs = zip(first, second, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs if isinstance(a, torch.Tensor))


def test_the_name_of_an_annotated_tensor_tells_what_it_holds():
    def forward(prediction: torch.Tensor, target: torch.Tensor, valid: torch.Tensor):
        """Gathers by its target, where it is valid."""

    first = next(guesses(list(inspect.signature(forward).parameters.values())))
    assert [value.dtype for value in first] == [torch.float64, torch.int64, torch.bool]


def test_forms_are_of_their_kind():
    x = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made = {name: args[0] for name, args in forms((x,))}
    assert torch.equal(made["symmetric"], made["symmetric"].mT)
    assert torch.linalg.eigvalsh(made["symmetric and positive definite"]).min() > 0
    assert (made["sorted"].diff(dim=-1) >= 0).all()
    assert torch.allclose(made["normalised"].sum(-1), torch.ones(3, dtype=torch.float64))
