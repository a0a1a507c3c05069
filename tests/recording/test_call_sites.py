"""What a package's own code and tests hand to a Function, read from their source."""

import inspect

import pytest
import torch

from pullback.recording import discover
from pullback.recording._call_sites import call_sites
from pullback.recording._guess import guesses

LAYERS = """
import torch
import torch.nn.functional as F

BITS = 6

class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels, mode):
        if levels % 2 or mode != "nearest":
            raise ValueError("an even number of levels, nearest")
        return (x * levels).round() / levels
    @staticmethod
    def backward(ctx, g):
        return g, None, None

def quantise(x, bits=BITS, mode="nearest"):
    levels = 2**bits
    return Round.apply(x, levels, mode)

class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, starts):
        if rows.ndim != 2 or starts[-1] != len(rows):
            raise ValueError("starts end with the number of rows")
        ctx.size = rows.shape
        return rows.sum(0)
    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.size), None

launch = open("/nowhere") if BITS == 7 else None
"""
TESTS = """
import pytest
import torch as th
from layers_of_a_package import Pair

pair = Pair.apply

@pytest.mark.parametrize(("count", "wide"), [(5, 3), (7, 2)])
def test_pair(count, wide):
    rows = th.randn(count, wide, requires_grad=True)
    starts = th.tensor([0, 2, count])
    assert pair(rows, starts) is not None
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "layers_of_a_package.py").write_text(LAYERS)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_layers.py").write_text(TESTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_literals_and_defaults_of_a_call_are_told(folder):
    (known,) = call_sites("Round", [folder / "layers_of_a_package.py"])
    assert known == {1: 64, 2: "nearest"}


def test_a_test_tells_the_tensors_too(folder):
    (known,) = call_sites("Pair", [folder / "tests" / "test_layers.py"])
    assert known[0].shape == (5, 3)
    assert known[1].tolist() == [0, 2, 5]


def test_calls_of_the_function_around_it_are_told(folder):
    test = folder / "tests" / "test_rounded.py"
    test.write_text(
        "import torch\nimport layers_of_a_package as layers\n"
        "def test_rounds():\n    layers.quantise(torch.ones(2, 5), bits=3)\n"
    )
    known, _ = call_sites("Round", [folder / "layers_of_a_package.py", test])
    assert known[0].shape == (2, 5)
    assert (known[1], known[2]) == (8, "nearest")


def test_a_weight_for_each_channel_is_thought_of():
    parameters = list(inspect.signature(lambda x, weight, eps: None).parameters.values())
    shapes = [(tuple(x.shape), tuple(w.shape)) for x, w, _ in guesses(parameters)
              if isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor)]  # fmt: skip
    assert ((3, 4), (4,)) in shapes


@pytest.mark.parametrize(
    "source",
    ["Round.apply(x, open('/nowhere'))", "Round.apply(*given)", "Other.apply(1)", "Round.apply(",
     "Round.apply(torch.load('weights.pt'))", "import torch\nRound.apply(torch.ones(10**6))"],
)  # fmt: skip
def test_what_the_source_does_not_tell_is_left_out(tmp_path, source):
    (tmp_path / "calls.py").write_text(source)
    assert list(call_sites("Round", [tmp_path / "calls.py", tmp_path / "none.py"])) == []


@pytest.mark.parametrize(
    "source", ["import torch\nRound.apply(torch.load({!r}))", "from torch import load as read\n"
               "Round.apply(read({!r}))"],
)  # fmt: skip
def test_no_file_is_read(tmp_path, source):
    torch.save(3, tmp_path / "weights.pt")
    (tmp_path / "calls.py").write_text(source.format(str(tmp_path / "weights.pt")))
    assert list(call_sites("Round", [tmp_path / "calls.py"])) == []


def test_what_is_known_is_tried_first_and_the_rest_is_guessed():
    parameters = list(inspect.signature(lambda x, bits, mode: None).parameters.values())
    x, bits, mode = next(guesses(parameters, [{1: 6, 2: "nearest"}]))
    assert (tuple(x.shape), bits, mode) == ((3, 4), 6, "nearest")


@pytest.mark.usefixtures("copied_workers")
def test_functions_that_no_guess_fits_are_found_inputs_for(folder):
    found = {item.locator.qualname: item for item in discover("layers_of_a_package").recording}
    (_, levels, mode), _ = found["Round"].arguments(0)
    assert (levels, mode) == (64, "nearest")
    (rows, starts), _ = found["Pair"].arguments(0)
    assert torch.equal(starts, torch.tensor([0, 2, 5]))
    assert rows.shape == (5, 3)
