"""Operations on texts: what is said arrives once, everywhere it matters, and does not grow."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tape import Variable, backward, grad, vmap
from pullback.text import Failure, Parameter, concat, join, select, split
from pullback.text import format as fill_in
from pullback.text import sum as total


def texts(*values):
    return [Variable(value, role=value, requires_grad=True) for value in values]


@settings(max_examples=examples(40), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_in_any_graph_each_input_that_matters_is_told_once(dice: random.Random, size):
    leaves = texts(*(f"leaf{n}" for n in range(6)))
    made = list(leaves)
    reach = [{n} for n in range(6)]
    for _ in range(size):
        chosen = [dice.randrange(len(made)) for _ in range(dice.randint(1, 4))]
        values = [made[n] for n in chosen]
        operation = dice.choice(["concat", "join", "format", "sum"])
        if operation == "concat":
            made.append(concat(*values))
        elif operation == "join":
            made.append(join("; ", values))
        elif operation == "sum":
            made.append(total(values))
        else:
            fields = {f"f{n}": value for n, value in enumerate(values)}
            made.append(fill_in(" ".join(f"{{{name}}}" for name in fields), **fields))
        reach.append(set().union(*(reach[n] for n in chosen)))
        if len(made[-1].data) > 5000:
            break
    made[-1].backward(Variable("bad", role="critique"))
    for number, leaf in enumerate(leaves):
        assert [note.data for note in leaf.grad] == (["bad"] if number in reach[-1] else [])


def test_feedback_over_a_long_chain_of_operations_grows_linearly():
    def sizes(length):
        [leaf] = texts("x")
        other = Parameter("y", role="other")
        value = leaf
        for _ in range(length // 2):
            value = split(concat(value, "|", other), "|")[0]
        value.backward([Variable("note 1"), Variable("note 2")])
        told = [*leaf.grad, *other.grad]
        assert max(len(note.data) for note in told) <= 2000
        return sum(len(note.data) for note in leaf.grad), sum(len(n.data) for n in other.grad)

    size = min(examples(400), 2_000)  # up to 10,000 operations in `make fuzz`
    few, many = sizes(size), sizes(5 * size)
    assert many[0] == few[0]  # what arrives at the start is bounded
    assert many[1] <= 7 * few[1]  # each step: a bounded note; a square would be 25


def test_a_part_is_told_which_part_it_is():
    [text] = texts("a b c")
    parts = split(text)
    parts[2].backward(Variable("too short"))
    assert [note.data for note in text.grad] == ["On part 2 of the text: too short"]
    assert text.grad[0].origin.function == "SplitBackward"


def test_a_format_fills_once_and_reaches_no_attribute():
    [name] = texts("{other}{{")
    assert fill_in("{name}-{{x}}", name=name).data == "{other}{{-{x}"
    for template in ("{name.__class__}", "{0}", "{}", "{name!r}", "{name:>9}", "{", "a } b"):
        with pytest.raises(ArgumentError, match=r"brace"):
            fill_in(template, name=name)


def test_a_missing_or_unused_value_is_refused():
    with pytest.raises(ArgumentError, match=r"no value: 'b'"):
        fill_in("{a} {b}", a="x")
    with pytest.raises(ArgumentError, match=r"no field for: 'c'"):
        fill_in("{a}", a="x", c="y")


def test_what_is_no_text_is_refused():
    with pytest.raises(ArgumentTypeError, match="text was expected"):
        concat("a", Variable(["b"]))
    with pytest.raises(ArgumentTypeError, match="feedback is no number"):
        fill_in("{n}", n=Variable(1.0, requires_grad=True))
    with pytest.raises(ArgumentError, match="no text to put together"):
        join(",", [])
    with pytest.raises(ArgumentError, match="empty separator"):
        split(Variable("ab"), "")
    with pytest.raises(ArgumentError, match="no such entry"):
        select(Variable({"a": "b"}), "c")


def test_numbers_sum_with_slopes():
    x = Variable(2.0, requires_grad=True)
    result = total([x, x, Variable(1.0)])
    result.backward()
    assert (result.data, x.grad.data) == (5.0, 2.0)


def test_a_batch_runs_the_operations():
    items = texts("a", "b")
    out = vmap(lambda x: fill_in("<{x}>", x=x))(items)
    assert out.data == ["<a>", "<b>"]
    assert vmap(lambda x: total([x, "c"]))(items).data[1] == "<ITEM>b</ITEM><ITEM>c</ITEM>"
    out.backward(Variable(["p", "q"]))
    assert [[note.data for note in item.grad] for item in items] == [["p"], ["q"]]


def test_a_batch_is_selected_from_item_by_item_and_one_that_failed_stays_as_it_is():
    failed = Failure("cut off")
    items = [Variable(each, requires_grad=True) for each in ({"a": ["x"]}, failed, {"a": ["y"]})]
    out = vmap(lambda item: select(item, "a", 0))(items)
    assert out.data == ["x", failed, "y"]
    backward(out, Variable(["", "", "why y?"]))
    assert [note.data for note in items[2].grad.data["a"][0]] == ["why y?"]
    with pytest.raises(ArgumentError, match="no such entry"):
        select(Variable(None), "a")


def test_what_is_said_of_feedback_flows_back_to_who_said_it():
    [text], [critique] = texts("a b"), texts("bad")
    (feedback,) = grad(split(text)[0], text, critique, create_graph=True)
    feedback.notes[0].backward(Variable("unfair"))
    assert [note.data for note in critique.grad] == ["unfair"]
