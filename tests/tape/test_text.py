"""Feedback: ordered, each note once, with its origin; and the example of the reference page."""

import copy

import pytest

from pullback import tape
from pullback.errors import ArgumentTypeError, GraphError, UnsupportedError
from pullback.tape import Feedback, Function, Variable, _application, grad, jvp, stack, vmap
from pullback.tape._feedback import notes_in


def test_the_example_of_the_reference_page_runs():
    class Func(Function):
        @staticmethod
        def forward(ctx, x: Variable):
            reverse = x.data[::-1]
            out = Variable(data=reverse, role=x.role, requires_grad=True)
            ctx.save_for_backward(x, reverse, out)
            return out

        @staticmethod
        def backward(ctx, grad_out):
            x, _reverse, _out = ctx.saved_variables
            grad = f"Here is the feedback for {x.role} (reversed): {grad_out.grad}"
            role = f"Feedback to {x.role}"
            x.grad = Variable(data=grad, role=role)
            return x.grad

    a = Variable(data="This is a string", role="Input string", requires_grad=True)
    c = Func.apply(a)
    assert c.data == "gnirts a si sihT"
    assert c.role == "Input string"
    assert c.requires_grad
    assert c.grad_fn.name() == "FuncBackward"
    c.backward(Variable("too short", role="critique"))
    [note] = a.grad
    assert note.data.startswith("Here is the feedback for Input string (reversed)")
    assert note.role == "Feedback to Input string"
    assert note.origin.function == "FuncBackward"


class Say(Function):
    """Joins texts, and tells each what was said of the result."""

    @staticmethod
    def forward(ctx, *texts):
        ctx.roles = [text.role for text in texts]
        return Variable(" ".join(text.data for text in texts), role="sentence")

    @staticmethod
    def backward(ctx, feedback):
        return tuple(Variable(f"{role}: {note.data}") for role in ctx.roles for note in [feedback])


def words(*texts):
    return [Variable(t, role=t, requires_grad=True) for t in texts]


def test_text_has_an_empty_list_before():
    (a,) = words("a")
    assert isinstance(a.grad, list)
    assert not a.grad
    assert Variable(1.0).grad is None


def test_notes_gather_in_the_order_of_the_graph():
    a, b = words("a", "b")
    out = Say.apply(Say.apply(a, b), Say.apply(b, a))
    out.backward(Variable("bad"))
    assert [note.data for note in a.grad] == ["a: sentence: bad"] * 2
    assert len({note.origin.node for note in a.grad}) == 2


def test_one_note_that_comes_two_ways_is_one():
    (a,) = words("a")
    (a + a).backward(Variable("bad"))
    assert [note.data for note in a.grad] == ["bad"]
    (b,) = words("b")
    Say.apply(b, b).backward(Variable("bad"))
    assert [note.data for note in b.grad] == ["b: bad"]


def test_feedback_does_not_grow_along_a_chain():
    (a,) = words("a")
    text = a
    for _ in range(300):
        text = text + a
    text.backward(Variable("bad"))
    assert [note.data for note in a.grad] == ["bad"]


def test_every_input_gets_its_own_feedback():
    a, b, c = words("a", "b", "c")
    Say.apply(a, b, c).backward([Variable("x"), Variable("y")])
    assert [[note.data for note in leaf.grad] for leaf in (a, b, c)] == [
        ["a: x\ny"], ["b: x\ny"], ["c: x\ny"],
    ]  # fmt: skip


def test_what_gives_no_feedback_is_not_run_upstream():
    ran = []

    class Silent(Function):
        @staticmethod
        def forward(ctx, x):
            return Variable(x.data)

        @staticmethod
        def backward(ctx, feedback):
            ran.append(feedback)

    (a,) = words("a")
    Silent.apply(Silent.apply(a)).backward(Variable("bad"))
    assert len(ran) == 1
    assert len(a.grad) == 0


def test_what_made_an_entry_that_nothing_was_said_of_is_not_asked():
    asked = []

    class Ask(Function):
        @staticmethod
        def forward(ctx, x):
            return Variable(x.data + "!")

        @staticmethod
        def backward(ctx, feedback):
            asked.append(feedback.data)
            return Variable(f"revise: {feedback.data}")

    items = words("a", "b", "c")
    vmap(Ask.apply)(items)[1].backward(Variable("bad"))
    vmap(Ask.apply)(items).backward(Variable(["short", None, None]))
    assert asked == ["bad", "short"]
    told = [[note.data for note in item.grad] for item in items]
    assert told == [["revise: short"], ["revise: bad"], []]


def test_feedback_is_a_text_and_a_sequence_of_notes():
    feedback = Feedback([Variable("x"), Variable("y")])
    assert (feedback.data, len(feedback), [n.data for n in feedback]) == ("x\ny", 2, ["x", "y"])
    assert not Feedback()
    assert Feedback().data == ""


def test_a_text_needs_a_gradient_of_its_kind():
    (a,) = words("a")
    text = a + "b"
    with pytest.raises(GraphError, match=r"not implicit"):
        text.backward()
    with pytest.raises(ArgumentTypeError, match=r"number Variable|float Variable"):
        text.backward(Variable(1.0))
    with pytest.raises(ArgumentTypeError):
        text.backward("bad")


def test_the_critique_can_be_criticised():
    (a,) = words("a")
    critic = Variable("a harsh critic", role="critic", requires_grad=True)

    class Review(Function):
        @staticmethod
        def forward(ctx, x, critic):
            ctx.save_for_backward(x, critic)
            return Variable(x.data, role="answer")

        @staticmethod
        def backward(ctx, feedback):
            _, critic = ctx.saved_variables
            return Say.apply(critic, feedback), None

    answer = Review.apply(a, critic)
    (note,) = grad(answer, a, Variable("vague"), create_graph=True)[0]
    assert note.data == "a harsh critic vague"
    note.backward(Variable("too harsh"))
    assert [n.data for n in critic.grad] == ["critic: too harsh"]


@pytest.mark.parametrize("notes", [["vague"], ["vague", "long"]], ids=len)
def test_a_critique_written_from_plain_data_refuses_to_be_criticised(notes):
    class Review(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Variable(x.data)

        @staticmethod
        def backward(ctx, feedback):
            (x,) = ctx.saved_variables
            said = [Variable(f"{x.data}: {note.data}") for note in feedback]
            return said if len(said) > 1 else said[0]

    (a,) = words("a")
    said = list(map(Variable, notes))
    (feedback,) = grad(Review.apply(a), a, said, create_graph=True)
    assert [note.data for note in feedback] == [f"a: {note}" for note in notes]
    for note in feedback.notes:
        with pytest.raises(UnsupportedError, match=r"ReviewBackward.*plain data"):
            note.backward(Variable("too harsh"))


def test_an_edit_is_pushed_on_or_refused():
    class Upper(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return Variable(x.data.upper())

        @staticmethod
        def jvp(ctx, edit):
            return Variable(f"in capitals: {edit.data}")

    text = Variable("a text")
    out, change = jvp(Upper.apply, (text,), (Variable("make it longer"),))
    assert (out.data, change.data) == ("A TEXT", "in capitals: make it longer")
    with pytest.raises(UnsupportedError, match=r"Say.*no jvp"):
        jvp(Say.apply, (text,), (Variable("make it longer"),))


def test_identical_items_of_a_batch_run_once_and_each_gets_its_feedback():
    ran = []

    class Shout(Function):
        @staticmethod
        def forward(x):
            ran.append(x.data)
            return Variable(x.data.upper())

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, feedback):
            (x,) = ctx.saved_variables
            return Variable(f"{x.role}: {feedback.data}")

    items = [Variable(t, role="word", requires_grad=True) for t in "aba"]
    out = vmap(Shout.apply)(items)
    assert ran == ["a", "b"]
    assert out.data == ["A", "B", "A"]
    out.backward(Variable(["x", "y", "z"]))
    said = [["word: x"], ["word: y"], ["word: z"]]
    assert [[n.data for n in item.grad] for item in items] == said


def test_items_of_other_roles_are_not_identical():
    class Named(Function):
        @staticmethod
        def forward(x):
            return Variable(f"{x.role}: {x.data}")

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, feedback):
            return feedback

    items = [Variable("yes", role=role, requires_grad=True) for role in ("Ann", "Bob")]
    assert vmap(Named.apply)(items).data == ["Ann: yes", "Bob: yes"]


def test_lists_of_texts_and_numbers_have_structured_gradients():
    a, number = Variable("a", requires_grad=True), Variable(2.0, requires_grad=True)
    both = stack({"text": a, "number": number})
    out = both["number"] * 3
    out.backward(retain_graph=True)
    assert number.grad.data == 3.0
    both.backward(Variable({"text": "wrong word", "number": 0.5}))
    assert number.grad.data == 3.5
    assert [note.data for note in a.grad] == ["wrong word"]
    listed = Variable(["a", "b"], role="list", requires_grad=True)
    listed[1].backward(Variable("typo"))
    assert [[n.data for n in slot] for slot in listed.grad.data] == [[], ["typo"]]
    longer = listed + ["c"]  # noqa: RUF005  # the tape's own concatenation
    longer.backward([None, Variable("again"), None])
    assert [n.data for n in listed.grad.data[1]] == ["typo", "again"]


def test_a_gradient_may_be_given_of_any_depth():
    rows = Variable([["a", "b"], ["c"], {"d": 2.0}], requires_grad=True)
    rows.backward(Variable([["x", None], None, {"d": 3.0}]))
    [[a, b], [c], numbers] = rows.grad.data
    assert [[n.data for n in each] for each in (a, b, c)] == [["x"], [], []]
    assert numbers == {"d": 3.0}


def test_one_function_takes_and_gives_several_kinds():
    class Judge(Function):
        @staticmethod
        def forward(ctx, answer, weight):
            ctx.save_for_backward(answer, weight)
            return weight * len(answer.data), Variable("it is long", role="explanation")

        @staticmethod
        def backward(ctx, score, explanation):
            answer, _ = ctx.saved_variables
            said = f"score {score.data}, said {[n.data for n in explanation]}"
            return Variable(said), score * len(answer.data)

    (a,) = words("answer")
    weight = Variable(0.5, requires_grad=True)
    score, explanation = Judge.apply(a, weight)
    tape.backward([score * 2, explanation], [None, Variable("why?")])
    assert weight.grad.data == 12.0
    assert [note.data for note in a.grad] == ["score 2.0, said ['why?']"]


def test_notes_to_the_texts_of_a_list_say_where_they_come_from():
    class Shout(Function):
        @staticmethod
        def forward(ctx, texts):
            return Variable([text.upper() for text in texts.data], role="loud")

        @staticmethod
        def backward(ctx, feedback):
            return [Variable(f"note {i}") for i in range(len(feedback))]

    class Same(Function):
        @staticmethod
        def forward(ctx, texts):
            return Variable(texts.data)

        @staticmethod
        def backward(ctx, feedback):
            return feedback

    texts = Variable(["a", "b"], requires_grad=True)
    Shout.apply(Same.apply(texts)).backward(Variable(["first", "second"]))
    assert all(isinstance(each, Feedback) for each in texts.grad.data)
    notes = [each.notes[0] for each in texts.grad.data]
    assert [note.data for note in notes] == ["note 0", "note 1"]
    assert {note.origin[:2] for note in notes} == {("ShoutBackward", "loud")}
    copied = copy.deepcopy(texts.grad.data[0])
    assert isinstance(copied, Feedback)
    assert copied.notes[0].origin == notes[0].origin


def test_the_entries_of_a_list_come_from_one_node():
    texts = [Variable(str(i), requires_grad=True) for i in range(1_000)]
    parts = list(stack(texts))
    assert len({part.grad_fn for part in parts}) == 1
    stack([part + "!" for part in parts]).backward(Variable(["note"] * 1_000))
    assert [text.grad[0].data for text in texts] == ["note"] * 1_000


def test_each_note_for_the_entries_of_a_list_is_looked_at_a_few_times(monkeypatch):
    looked = []

    def counting(gradient):
        for note in notes_in(gradient):
            looked.append(note)
            yield note

    monkeypatch.setattr(_application, "notes_in", counting)
    for count in (50, 100):
        looked.clear()
        texts = [Variable(str(i), requires_grad=True) for i in range(count)]
        stack([part + "!" for part in stack(texts)]).backward(Variable(["note"] * count))
        assert len(looked) <= 10 * count
