"""Arguments that nobody gave are said to be guessed, and tried in the forms of a domain."""

import json
from pathlib import Path

import pytest
import torch

from pullback.cli._guessed import guessed_report, paste_inputs
from pullback.cli._main import main
from pullback.cli._tasks import Task
from pullback.conformance import check

pytestmark = pytest.mark.usefixtures("no_edits")

CLAUSES = ("derivative",)


class Largest(torch.autograd.Function):
    """The largest eigenvalue of a symmetric matrix, right for these alone."""

    @staticmethod
    def forward(ctx, matrix):
        values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
        ctx.save_for_backward(vectors[..., -1])
        return values[..., -1] + (matrix - matrix.mT).square().sum()

    @staticmethod
    def backward(ctx, cotangent):
        (v,) = ctx.saved_tensors
        return cotangent * torch.outer(v, v)


def task_of(function, *args):
    return Task("a:F", lambda: (function, [(args, {})]), ("a:F",), guessed=True)


def test_a_function_of_symmetric_matrices_is_tried_with_one():
    matrix = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = {"clauses": CLAUSES, "gradient": "exact"}
    report = check(Largest, matrix, **options)
    assert not report.ok
    found = guessed_report(task_of(Largest, matrix), report, options)
    assert found.ok
    assert found.guessed == "(float64 (4, 4)), symmetric"


def test_a_wrong_function_stays_wrong_and_is_said_to_be_guessed():
    class Wrong(Largest):
        @staticmethod
        def backward(ctx, cotangent):
            return 2 * Largest.backward(ctx, cotangent)

    matrix = torch.randn(3, 3, dtype=torch.float64)
    options = {"clauses": CLAUSES, "gradient": "exact"}
    report = check(Wrong, matrix, **options)
    found = guessed_report(task_of(Wrong, matrix), report, options)
    assert not found.ok
    assert found.guessed == "(float64 (3, 3))"


def test_what_is_wrong_in_a_form_is_told_with_it():
    matrix = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = {"clauses": ["derivative", "double"], "gradient": "exact"}
    report = check(Largest, matrix, **options)
    found = guessed_report(task_of(Largest, matrix), report, options)
    assert [finding.clause for finding in found.problems] == ["double"]
    assert found.guessed == "(float64 (4, 4)), symmetric"


class SharesMask(torch.autograd.Function):
    mask = None

    @staticmethod
    def forward(ctx, x):
        SharesMask.mask = (x < 7).all()
        return x.clamp(max=7)

    @staticmethod
    def backward(ctx, g):
        return g * SharesMask.mask


def test_what_does_not_depend_on_the_domain_is_not_acquitted_by_one():
    x = torch.tensor([3.0, 1.0], dtype=torch.float64)
    options = {"clauses": "state", "gradient": "exact"}
    report = check(SharesMask, x, **options)
    found = guessed_report(task_of(SharesMask, x), report, options)
    assert found["state"].verdict == "broken"
    assert check(SharesMask, x / x.sum(), **options).ok


def test_the_line_to_paste_holds_the_arguments_that_were_guessed():
    args = (torch.ones(2, 3), torch.tensor([0, 2]), "mean")
    pasted = "torch.randn((2, 3), dtype=torch.float32), torch.tensor([0, 2]), 'mean'"
    assert paste_inputs(task_of(Largest, *args)) == pasted


PACKAGE = """
import torch

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3
"""


@pytest.mark.filterwarnings("ignore")
def test_the_json_says_what_was_guessed(tmp_path, monkeypatch, capsys):
    Path(tmp_path, "guessed_things.py").write_text(PACKAGE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["check", "guessed_things:Wrong", "--clauses", "derivative", "--no-isolate"]
    words += ["--gradient", "exact"]
    assert main([*words, "--json", "found.json"]) == 3
    capsys.readouterr()
    (found,) = json.loads(Path("found.json").read_text(encoding="utf-8"))["functions"]
    assert found["guessed"] == "(float64 (3, 4))"
    assert main([*words, "--input", "torch.randn(3, 4)", "--json", "found.json"]) == 1
    (found,) = json.loads(Path("found.json").read_text(encoding="utf-8"))["functions"]
    assert found["guessed"] == ""
