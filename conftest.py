"""Every example runs: those of README.md, CONTRIBUTING.md, docs/ and the docstrings of src/."""

import importlib.util
import os
from typing import Any

import torch
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.evaluators.doctest import NUMBER
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

# Of what inductor does at its first kernel, most is not for that kernel: it starts processes that
# would compile others, each with a torch of its own, and tries a program for each kind of vectors.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
if "PULLBACK_FUZZ" not in os.environ:
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

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


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Begin with the file that compiles most kernels: later two processes would, both the same."""
    items.sort(key=lambda item: "trajectory/programs/test_programs.py" not in item.nodeid)
