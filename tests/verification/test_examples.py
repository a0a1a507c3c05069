"""What the example may hold: tensors without dimensions, dtypes of few operations, no entries."""

import json

import pytest
import torch

from pullback import verify
from pullback.cli import main
from pullback.errors import ArgumentError
from pullback.report import Verdict, read_reports


def product(x, scale):
    return x * scale


def product_otherwise(x, scale):
    return scale * x


@pytest.mark.parametrize(
    "scale",
    [torch.tensor(1.5), torch.tensor(0.0), torch.tensor(3 + 1j), torch.tensor(3)],
    ids=str,
)
def test_a_tensor_without_dimensions_accuses_nobody(scale) -> None:
    report = verify(product_otherwise, product, (torch.randn(4, 3), scale), isolate=False)
    assert report.ok, str(report)
    assert report["values"].verdict is Verdict.HOLDS


def test_one_number_alone_is_judged() -> None:
    given = (torch.tensor(1.5),)
    assert verify(lambda x: x.clamp(min=0), torch.relu, given, isolate=False).ok
    report = verify(lambda x: x.clamp(0, 100), torch.relu, given, isolate=False)
    assert "large numbers: the output is wrong at its one entry" in report["values"].detail


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.uint16, torch.uint64,
     torch.complex32],
    ids=str,
)  # fmt: skip
def test_a_dtype_in_which_torch_computes_nothing_is_refused_by_name(dtype) -> None:
    def scaled(w, x):
        return w.to(torch.complex64) * x

    with pytest.raises(ArgumentError, match=rf"args\[0\] is of {dtype}"):
        verify(scaled, scaled, (torch.ones(4).to(dtype), torch.randn(4)), isolate=False)


def test_an_example_of_no_entries_is_refused() -> None:
    with pytest.raises(ArgumentError, match="could be compared: no number, no entry"):
        verify(lambda x: x * 2, torch.relu, (torch.randn(0, 8),), isolate=False)


def test_gradients_of_no_entries_are_not_said_to_hold() -> None:
    def total(x):
        return x.sum(0)

    report = verify(total, lambda x: x.sum(0), (torch.randn(0, 8),), isolate=False)
    assert report["outputs"].verdict is Verdict.HOLDS
    assert report["gradients"].verdict is Verdict.SKIPPED


def test_an_empty_argument_beside_another_is_none_the_worse() -> None:
    given = torch.randn(0, 4), torch.randn(3, 4)
    report = verify(lambda a, b: torch.cat([a, b], 0), lambda a, b: torch.cat([a, b]), given)
    assert report.ok, str(report)


MODULE = """import torch

def plain(x):
    return torch.linalg.cholesky(x)

def kernel(x):
    return torch.linalg.cholesky(x)

def make():
    make.count = getattr(make, "count", 0) + 1
    return (torch.eye(3) * (3 if make.count == 1 else -1),)
"""


def test_a_kernel_of_which_nothing_was_shown_is_not_passed(tmp_path, monkeypatch, capsys) -> None:
    """The reference takes no other values than those of the example."""
    (tmp_path / "shown_nothing.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [f"shown_nothing:{name}" for name in ("kernel", "plain", "make")]
    words = ["verify", names[0], "-r", names[1], "-i", names[2], "--no-isolate"]
    assert main([*words, "--json", "found.json"]) == 3
    [report], *_ = read_reports([tmp_path / "found.json"])
    assert all("the reference refuses" in finding.detail for finding in report), report


def test_what_the_refusal_of_float8_advises_is_judged() -> None:
    def scaled(w, x):
        return w.to(torch.float8_e4m3fn).to(x.dtype) * x

    given = torch.randn(4, 3).to(torch.float8_e4m3fn).float(), torch.randn(4, 3)
    for factor, ok in ((1, True), (1.01, False)):

        def kernel(w, x, factor=factor):
            return x * factor * w.to(torch.float8_e4m3fn).to(x.dtype)

        found = verify(kernel, scaled, given, isolate=False)
        assert found.ok is ok, str(found)


@pytest.mark.slow
def test_results_are_made_again_where_an_imported_module_has_changed(
    tmp_path, monkeypatch, capsys
) -> None:
    package = tmp_path / "kernels_in_parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ours.py").write_text(
        "from . import parts\n\n\ndef kernel(x):\n    return parts.scaled(x.exp())\n"
    )
    (package / "parts.py").write_text(
        "from number_of_parts import SCALE\n\n\ndef scaled(x):\n    return x * SCALE\n"
    )
    number, kept = tmp_path / "number_of_parts.py", tmp_path / "a.jsonl"
    number.write_text("SCALE = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["verify", "kernels_in_parts.ours:kernel", "-r", "torch:exp", "-i", "torch.randn(4)"]
    words += ["--results", "a.jsonl"]
    assert main(words) == 0
    first = kept.read_text()
    assert main(words) == 0
    assert kept.read_text() == first
    number.write_text("SCALE = 1.5\n")
    assert main(words) == 1
    number.write_text("import of.no\nsyntax = = 1")
    assert main(words) == 3
    assert [json.loads(line)["name"] for line in kept.read_text().splitlines()] == 2 * [words[1]]
