"""Every example runs: those of README.md, CONTRIBUTING.md, docs/ and the docstrings of src/."""

import importlib.util
from typing import Any

import pytest
import torch
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.evaluators.doctest import NUMBER
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

# A Triton kernel's module can only be imported where triton is installed.
NOT_IMPORTABLE = [] if importlib.util.find_spec("triton") else ["_triton.py"]


def seed_document(namespace: dict[str, Any]) -> None:
    """Start each document from the same random state, whatever ran before it."""
    torch.manual_seed(0)


_pages = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=NUMBER), SkipParser()],
    patterns=["*.md"],
    setup=seed_document,
)
_docstrings = Sybil(
    path="src",
    parsers=[DocTestParser(optionflags=NUMBER)],
    patterns=["*.py"],
    excludes=NOT_IMPORTABLE,
    document_types={".py": PythonDocStringDocument},
    setup=seed_document,
)
pytest_collect_file = (_pages + _docstrings).pytest()

# Known faults, by the test that shows each: refused by name where the right answer is due.
_OPEN = {
    "test_curobo.py::test_gradients[2-AccelerationTensorStepKernel]": "forward mode, horizon 2",
    "test_curobo.py::test_gradients[2-AccelerationTensorStepIdxKernel]": "forward mode, horizon 2",
    "test_track.py::test_second_order_is_kept_apart": "a second order that runs again is unmarked",
    "test_contract.py::test_every_clause[unit_scaling.ScaleTracker]": "more is refused than listed",
    "test_formats_contract.py::test_every_clause[formats.value]": "nested forward mode is refused",
    "test_formats_contract.py::test_every_clause[formats.value.stochastic]": "as formats.value",
    "test_complete_operator.py::test_a_backward_that_is_a_differentiable_operator_has_a_second_"
    "derivative": "a warning of torch's becomes a refusal",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of known faults, which are open."""
    for item in items:
        reason = _OPEN.get(item.nodeid.rpartition("/")[2])
        if reason is not None:
            item.add_marker(pytest.mark.xfail(strict=False, reason=f"open: {reason}"))
