"""Recordings: plain data on disk, live arguments again, and nothing executed in between."""

import enum
import functools
import os
import sys
import textwrap
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback.errors import ArgumentError, ProgramError, RecordingError
from pullback.recording import Limits, Recording, load_call, load_script, record_program
from pullback.recording.codec import Encoder, NotPlain, decode
from pullback.recording.locator import load_module


class Color(enum.Enum):
    RED = 1


def shout(text: str) -> str:
    return text.upper()


class Holder:
    def __init__(self, value) -> None:
        self.value = value

    def double(self):
        return self.value * 2


def round_trip(*values):
    encoder = Encoder(2**20)
    encoded = [encoder.encode(value) for value in values]
    return decode(encoded, encoder.tensors, load_module)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(plain)
@settings(max_examples=examples(60), deadline=None)
def test_plain_data_comes_back_equal(value) -> None:
    assert round_trip(value) == [value]


@pytest.mark.parametrize(
    "value",
    [
        torch.float32,
        torch.device("cpu"),
        torch.Size([2, 3]),
        torch.strided,
        torch.channels_last,
        slice(1, None, 2),
        range(3),
        {1, 2},
        frozenset("ab"),
        OrderedDict(a=1),
        Color.RED,
        shout,
        torch.sin,
        torch.Tensor.add,
        Path,
        b"bytes",
        1 + 2j,
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_values_come_back(value) -> None:
    (back,) = round_trip(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3)])
@pytest.mark.parametrize("grad", [True, False])
def test_tensors_come_back_with_their_flags(shape, grad) -> None:
    value = torch.randn(shape, dtype=torch.float64).requires_grad_(grad)
    (back,) = round_trip(value)
    assert torch.equal(back, value)
    assert back.requires_grad is grad
    assert back is not value


def test_a_tensor_given_twice_is_one_tensor_again() -> None:
    value = torch.randn(3, requires_grad=True)
    first, second = round_trip(value, value)
    assert first is second


def test_a_history_is_cut() -> None:
    (back,) = round_trip(torch.ones(2, requires_grad=True) * 2)
    assert back.is_leaf
    assert back.requires_grad


def test_partials_methods_and_objects() -> None:
    part, method, holder = round_trip(
        functools.partial(shout, "a"), Holder(3).double, Holder(torch.ones(2))
    )
    assert part() == "A"
    assert method() == 6
    assert holder.value.tolist() == [1.0, 1.0]


def test_a_closure_over_a_module_is_remade() -> None:
    layer = torch.nn.Linear(2, 2)
    offset = 0.5
    (again,) = round_trip(lambda x: layer(x) + offset)
    x = torch.ones(1, 2)
    assert torch.equal(again(x), layer(x) + 0.5)


def test_cycles_are_kept() -> None:
    holder = Holder(None)
    holder.value = holder
    (back,) = round_trip(holder)
    assert back.value is back


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (open, None),
        (iter([1]), "list_iterator"),
        (torch.eye(2).to_sparse(), "layout"),
        (torch.empty(2, device="meta"), "without data"),
        (Path("a"), "Path"),
        (lambda x: handle, "closes over"),
    ],
    ids=["builtin", "iterator", "sparse", "meta", "path", "closure"],
)
def test_what_has_no_plain_form_is_refused_with_its_reason(value, reason) -> None:
    if reason is None:
        assert round_trip(value) == [value]
        return
    if reason == "closes over":
        handle = iter([1])
        value = lambda x: (x, handle)  # noqa: E731
    with pytest.raises(NotPlain, match=reason):
        Encoder(2**20).encode(value)


handle = None


def test_the_limit_of_bytes_is_kept() -> None:
    with pytest.raises(NotPlain, match="MiB"):
        Encoder(100).encode(torch.ones(100))


def test_a_class_that_acts_when_dropped_is_neither_taken_nor_remade() -> None:
    with pytest.raises(NotPlain, match="plain form"):
        Encoder(100).encode(Dangerous())
    node = ("object", 0, __name__, "Dangerous", [])
    with pytest.raises(RecordingError, match="malformed"):
        decode([node], [], load_module)


class Dangerous:
    def __del__(self) -> None:
        pass


@pytest.mark.parametrize(
    "node", [("system", "ls"), ["list"], ("tensor", 7, True, "cpu", False), ("named", "os", "nope")]
)
def test_malformed_nodes_are_refused(node) -> None:
    with pytest.raises(RecordingError):
        decode([node], [], load_module)


# Files ----------------------------------------------------------------------------------------


class Exploit:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def test_a_malicious_file_is_not_opened(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": "pullback recording", "x": Exploit()}, "calls.pt")
    with pytest.raises(RecordingError, match="more than plain data"):
        Recording.load("calls.pt")
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"not a zip", "not opened|cannot be read"),
        ({"a": 1}, "not a recording"),
        ({"format": "pullback recording", "version": 99}, "another version"),
        ({"format": "pullback recording", "version": 2, "program": [], "functions": [{}]}, "malf"),
        ([1], "not a recording"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, content, message) -> None:
    path = tmp_path / "calls.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(RecordingError, match=message):
        Recording.load(path)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(RecordingError, match="There is no recording"):
        Recording.load(tmp_path / "none.pt")


# Programs -------------------------------------------------------------------------------------

SCRIPT = """
import sys
import torch
import helper_of_script

FACTOR = 2.0

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, pick):
        return pick(x) * FACTOR * helper_of_script.ONE
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * FACTOR, None

for step in range(3):  # a script without a guard: loading it again must not train again
    x = torch.ones(3, requires_grad=True)
    Scale.apply(x, lambda value: value + step).sum().backward()
    open("ran.txt", "a").write("x")

if __name__ == "__main__":
    Scale.apply(torch.ones(2, 2), torch.sin)
"""


@pytest.fixture
def script(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    (tmp_path / "helper_of_script.py").write_text("ONE = 1.0\n")
    return path


def test_a_script_is_recorded_and_found_again_without_running_it(script) -> None:
    recording, failure = record_program([sys.executable, str(script)], Limits(calls=2))
    assert failure is None
    (found,) = recording.functions
    assert found.applied == 4
    assert len(found.calls) == 2
    recording.save("calls.pt")
    again = Recording.load("calls.pt").functions[0]
    function = again.load()
    args, keywords = again.arguments(0)
    assert keywords == {}
    assert function.apply(*args).tolist() == [2.0, 2.0, 2.0]
    assert args[1](torch.zeros(1)).item() == 0.0  # the lambda reads a variable of the loop
    assert load_call("calls.pt", again.name)[0] is function
    assert Path("ran.txt").read_text() == "xxx"


@pytest.mark.parametrize("how", ["module", "pytest", "child"])
def test_other_ways_to_run_a_program(script, how) -> None:
    body = textwrap.dedent(SCRIPT.partition("for step")[0])
    Path("lib_of_program.py").write_text(body)
    use = (
        "from lib_of_program import *\nScale.apply(torch.ones(3, requires_grad=True), torch.cos)\n"
    )
    if how == "module":
        Path("entry.py").write_text(use)
        command = [sys.executable, "-m", "entry"]
    elif how == "pytest":
        Path("test_it.py").write_text(use.replace("Scale.apply", "def test_it():\n    Scale.apply"))
        command = ["pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    else:
        Path("entry.py").write_text(use)
        spawn = "import subprocess, sys; subprocess.run([sys.executable, 'entry.py'], check=True)"
        command = [sys.executable, "-c", spawn]
    recording, failure = record_program(command)
    assert failure is None
    assert [item.name for item in recording] == ["lib_of_program:Scale"]


def test_a_program_that_fails_keeps_what_it_applied(script) -> None:
    script.write_text(SCRIPT + "\nraise SystemExit(7)\n")
    recording, failure = record_program([sys.executable, str(script)])
    assert "status 7" in failure.what
    assert len(recording) == 1


def test_a_killed_program_keeps_what_it_applied(script) -> None:
    script.write_text(SCRIPT + "\nimport os\nos.kill(os.getpid(), 9)\n")
    recording, failure = record_program([sys.executable, str(script)])
    assert "SIGKILL" in failure.what
    assert len(recording.functions[0].calls) == 3 - 1


def test_a_python_that_ignores_the_environment_is_named(script) -> None:
    with pytest.raises(ProgramError, match="did not start the recorder"):
        record_program([sys.executable, "-I", "-c", "pass"])


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ProgramError, match="does not exist"):
        record_program(["no-such-program-anywhere"])


def test_a_local_function_is_named_with_the_mend(script) -> None:
    script.write_text(
        "import torch\ndef main():\n    class Inner(torch.autograd.Function):\n"
        "        @staticmethod\n        def forward(ctx, x): return x * 2\n"
        "    Inner.apply(torch.ones(2))\nmain()\n"
    )
    recording, _ = record_program([sys.executable, str(script)])
    with pytest.raises(RecordingError, match="defined inside main"):
        recording.functions[0].load()


def test_a_script_whose_definitions_fail_says_so(tmp_path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module_at_all\nclass F(no_such_module_at_all.Base): pass\n")
    with pytest.raises(ArgumentError, match="cannot be taken out"):
        load_script(str(path), "F")
