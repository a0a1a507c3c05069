"""Modules: what is in them, and their state, whole or not at all."""

import copy
import json
import pickle
from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tape import Variable
from pullback.text import ChatModule, Module, Parameter, StepError, join, map_python
from pullback.text.lm import Cached, Scripted


class Inner(Module):
    def __init__(self, text):
        self.prompt = Parameter(text, role="inner prompt")


class Outer(Module):
    def __init__(self):
        self.first, self.second = Inner("a"), Inner("b")
        self.shared = self.first.prompt
        self.many = [Inner("c"), {"x": Parameter("d")}]
        self.register_buffer("note", Variable("e"))
        self.loose = Variable("not saved")


def test_each_parameter_once_by_its_path():
    outer = Outer()
    state = {
        "first.prompt": "a", "second.prompt": "b", "many.0.prompt": "c", "many.1.x": "d",
        "note": "e",
    }  # fmt: skip
    assert outer.state_dict() == state
    assert len(list(outer.modules())) == 4


def test_parameters_in_any_list_or_dict_are_found_and_none_hides_another():
    class Held(Module):
        def __init__(self):
            self.ordered = OrderedDict(a=Parameter("1"))
            self.by_name = defaultdict(Module, b=Parameter("2"))
            self.last = deque([Parameter("3")])
            self.pair = namedtuple("Pair", "one")(Parameter("4"))

    held = Held()
    assert held.state_dict() == {"ordered.a": "1", "by_name.b": "2", "last.0": "3", "pair.0": "4"}
    dotted = {"x.y": Parameter("5"), "x": {"y": Parameter("6")}}
    for texts in (dotted, {1: Parameter("5"), "1": Parameter("6")}):
        two = Module()
        two.texts = texts
        with pytest.raises(ArgumentError, match="one path"):
            two.state_dict()
        with pytest.raises(ArgumentError, match="one path"):
            two.load_state_dict({})


def test_a_step_that_failed_reaches_another_process():
    given = join("", [Variable("x", requires_grad=True)])
    with pytest.raises(StepError) as failed:
        map_python(int, given, purpose="read")
    again = pickle.loads(pickle.dumps(failed.value))
    assert str(again) == str(failed.value)
    assert again.inputs[0].data == "x"
    again.backward()  # nothing there can be told


def test_a_module_that_holds_itself_is_walked_once():
    outer = Outer()
    outer.me = outer
    assert len(list(outer.parameters())) == 4


def test_a_state_is_taken_whole_or_not_at_all(tmp_path):
    outer = Outer()
    for wrong, match in (
        ({"first.prompt": "x"}, "missing"),
        ({**outer.state_dict(), "more": "x"}, "unknown"),
    ):
        with pytest.raises(ArgumentError, match=match):
            outer.load_state_dict(wrong)
    with pytest.raises(ArgumentTypeError, match="another kind"):
        outer.load_state_dict({**outer.state_dict(), "first.prompt": "x", "note": 3.0})
    assert outer.first.prompt.data == "a"
    outer.load_state_dict({"first.prompt": "x"}, strict=False)
    outer.save(tmp_path / "state.json")
    again = Outer()
    again.load(tmp_path / "state.json")
    assert again.state_dict() == outer.state_dict()
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ArgumentError, match="no JSON"):
        again.load(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text(json.dumps([1]))
    with pytest.raises(ArgumentError, match="no state"):
        again.load(tmp_path / "list.json")


def test_modes_and_gradients():
    outer = Outer().eval()
    assert not outer.first.training
    outer.train()
    assert outer.many[0].training
    outer.first.prompt.grad = [Variable("x")]
    outer.zero_grad()
    assert len(outer.first.prompt.grad) == 0
    outer.requires_grad_(False)
    assert not any(each.requires_grad for each in outer.parameters())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_of_a_module_has_parameters_of_its_own(copied):
    outer = Outer()
    again = copied(outer)
    assert again.state_dict() == outer.state_dict()
    assert again.shared is again.first.prompt is not outer.first.prompt


def test_a_copy_of_a_module_asks_the_same_model():
    module = ChatModule(Cached(Scripted({"Hi": "Ho"})), "Greet.")
    again = copy.deepcopy(module)
    assert again.lm is module.lm
    assert again.system is not module.system
    assert again(input="Hi").data == "Ho"
