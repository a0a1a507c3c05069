"""What trains no more is named, with the line; what is sound is not accused."""

import inspect
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from tests.recording.training import dead, sound
from tests.recording.training.loops import fit

from pullback.cli._outputs import Results, show
from pullback.cli._tasks import training_outcome
from pullback.recording import (
    KINDS,
    ParameterFinding,
    Training,
    watch_training,
)
from pullback.recording._spool import watch_this_process
from pullback.recording.training import _flow
from pullback.report._terminal import make_console


def cut_lines(program) -> set[str]:
    """The lines that a program marks, or those marked with its name elsewhere."""
    source = inspect.getsource(dead).splitlines()
    lines, first = inspect.getsourcelines(program)
    own = [first + k for k, line in enumerate(lines) if line.rstrip().endswith("# cut")]
    named = f"# cut in {program.__name__}"
    return {f"dead.py:{number}" for number in own} | {
        f"dead.py:{number}" for number, line in enumerate(source, 1) if line.endswith(named)
    }


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", dead.PROGRAMS)
def test_what_trains_no_more_is_named(name: str) -> None:
    program, said = dead.PROGRAMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the programs' own
        with watch_training() as found:
            program()
    assert {(item.kind.replace(" ", "_"), item.name) for item in found} == said
    lines = cut_lines(program)
    places = {item.place.rpartition("/")[2] for item in found}
    if lines:
        assert places == lines
    assert all(not item.operation.startswith("_") for item in found)
    assert not found
    assert all(item.name in str(found) for item in found)


def test_a_compiler_that_is_being_imported_is_left_alone(monkeypatch):
    half = types.ModuleType("torch._dynamo")
    monkeypatch.setitem(sys.modules, half.__name__, half)
    monkeypatch.setattr(torch, "_dynamo", half)
    with watch_training() as found:
        assert torch.ones(1) == 1  # as torch 2.7 does halfway through that import
        monkeypatch.undo()
    assert list(found) == []


@pytest.mark.parametrize("name", sound.PROGRAMS)
def test_what_is_sound_is_not_accused(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch_training() as found:
            sound.PROGRAMS[name]()
    assert list(found) == []
    assert found
    assert not found._flow.fault


def test_a_process_writes_what_is_known_of_it(tmp_path: Path) -> None:
    watch = watch_this_process(str(tmp_path))
    dead.PROGRAMS["detach"][0]()
    watch.leave()
    training = Training.collect(str(tmp_path))
    assert training.steps == 4  # the last at which it was looked at
    assert [item.name for item in training.findings] == ["Net.first.weight"]


def test_a_row_of_the_table_tells_of_training() -> None:
    cut = ParameterFinding("Net.a", "cut", "at each of 6 steps", ".detach()", "train.py:5")
    [outcome] = training_outcome(Training((cut,), 6), ["python", "train.py"])
    assert outcome.report is not None
    assert not outcome.report.ok
    assert outcome.report["cut"].source == "train.py:5"
    assert outcome.report["zero"].verdict == "holds"
    assert training_outcome(Training(), ["python", "generate.py"]) == []
    console = make_console()
    with console.capture() as shown:
        show(Results([outcome], 1.0), console)
    assert "0 Functions and the training checked, 1 broken" in shown.get()


def shown(training: Training) -> str:
    console = make_console()
    with console.capture() as text:
        show(Results(training_outcome(training, ["python", "train.py"]), 1.0), console)
    return text.get()


def test_what_is_in_no_loss_is_named_though_it_breaks_nothing() -> None:
    text = shown(Training((ParameterFinding("Net.aux", "unused", "at each of 6 steps"),), 6))
    assert "Net.aux: is in no loss, at each of 6 steps" in " ".join(text.split())
    assert "ok in 1.0 s" in text


@pytest.mark.parametrize(("steps", "told"), [(1, {"not finite"}), (4, set(KINDS) - {"zero"})])
def test_nothing_is_said_to_hold_before_it_can_be_told(steps: int, told: set[str]) -> None:
    [outcome] = training_outcome(Training((), steps), ["python", "train.py"])
    assert outcome.report is not None
    holding = {item.clause for item in outcome.report if item.verdict == "holds"}
    assert holding == {kind.replace(" ", "-") for kind in told}


def test_nothing_of_the_watch_stays() -> None:
    from torch.nn.modules import module
    from torch.optim import optimizer

    kept = [
        optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks,
        module._global_forward_pre_hooks, module._global_parameter_registration_hooks,
        module._global_module_registration_hooks,
    ]  # fmt: skip
    before = [len(hooks) for hooks in kept]
    with watch_training():
        sound.PROGRAMS["plain"]()
        assert torch._C._len_torch_function_stack() == 0  # after its first steps
    assert [len(hooks) for hooks in kept] == before


def test_a_program_that_trains_nothing_and_calls_no_module_is_let_go(monkeypatch) -> None:
    monkeypatch.setattr(_flow, "_PATIENCE", 3)
    monkeypatch.setattr(_flow, "_ALONE", 3)
    with watch_training() as found:
        for _ in range(9):
            torch.ones(2) * 2
        assert not found._flow.entered
        assert torch._dynamo.eval_frame._stance.stance == "default"
        dead.PROGRAMS["detach"][0]()
    assert [item.name for item in found] == ["Net.first.weight"]
    assert torch._C._len_torch_function_stack() == 0


def test_a_fault_of_the_watch_is_said_and_disturbs_nobody() -> None:
    class Idle(torch.optim.SGD):
        def step(self, closure=None):
            return None

    class Odd(torch.Tensor):
        @property
        def is_sparse(self):
            raise RuntimeError("nobody asks me")

    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3).as_subclass(Odd)
    with watch_training() as training:
        Idle([p], lr=0.1).step()
    assert "could not be watched: RuntimeError: nobody asks me" in str(training)


def test_a_second_watch_knows_nothing_of_the_first() -> None:
    head, body = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    # As hooks of a distributed model do, this keeps the node of a leaf, and what is noted in it.
    kept = [p.view_as(p).grad_fn.next_functions[0][0] for p in head.parameters()]
    with watch_training(head):
        fit(head)
    model = torch.nn.ModuleList([body, head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch_training(model) as found:
        fit(lambda x: head(body(x).detach()), optimizer)
    assert len(kept) == 2
    assert [(item.name, item.kind) for item in found] == [
        ("ModuleList.0.weight", "cut"), ("ModuleList.0.bias", "cut"),
    ]  # fmt: skip


def test_a_model_that_an_optimiser_is_handed_stays_the_same_object() -> None:
    handed = []

    class Second(torch.optim.SGD):
        def step(self, model, closure=None):
            handed.append(model)
            return super().step(closure)

    model = torch.nn.Linear(4, 4)
    with watch_training(model):
        Second(model.parameters(), lr=0.1).step(model)
    assert handed == [model]


def test_what_the_watch_itself_computes_is_no_part_of_the_program():
    body, unused = torch.nn.Linear(3, 3), torch.nn.Linear(2, 4)
    optimizer = torch.optim.SGD([*body.parameters(), *unused.parameters()], lr=0.1)

    with watch_training(body, unused) as found:
        for _ in range(6):
            y = body(torch.randn(4, 3))
            _ = (y.detach() * y).sum().backward(), optimizer.step()  # on one line
    assert {(item.name, item.kind) for item in found} == {
        ("Linear#2.weight", "unused"), ("Linear#2.bias", "unused"),
    }  # fmt: skip


class Sequence(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def __hash__(self):
        return hash(tuple(self.layers))


def test_a_module_whose_hash_reads_what_it_does_not_have_yet_is_made() -> None:
    with watch_training():
        assert len(Sequence([torch.nn.Linear(2, 2)]).layers) == 1
