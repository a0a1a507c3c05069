"""Each misuse has an error of our own that names the node, its role, and how to mend it."""

import copy
import functools
import json
import math
import pickle

import pytest

from pullback.errors import (
    ArgumentError,
    ArgumentTypeError,
    DefinitionError,
    GraphError,
    PullbackError,
    UnsupportedError,
)
from pullback.tape import (
    Function,
    Variable,
    backward,
    grad,
    graph,
    jvp,
    no_grad,
    register_space,
    sin,
    space_of,
    stack,
    vmap,
)  # fmt: skip
from pullback.tape.graph import Node


def function(forward=None, backward=None, **attributes):
    body = {
        "forward": staticmethod(forward or (lambda ctx, x: x * 2)),
        "backward": staticmethod(backward or (lambda ctx, g: g * 2)),
        **attributes,
    }
    return type("Odd", (Function,), body)


def leaf(value=2.0, role="weight"):
    return Variable(value, role=role, requires_grad=True)


def saving(verb, *args):
    def backward(ctx, g):
        getattr(ctx, verb)(*args)
        return g

    return backward


def test_backward_twice_names_the_node_and_its_role():
    y = leaf() * Variable(3.0, role="factor", requires_grad=True)
    y.role = "product"
    y.backward()
    with pytest.raises(GraphError, match=r"second time") as caught:
        y.backward()
    assert "MultiplyBackward" in str(caught.value)
    assert "retain_graph=True" in str(caught.value)


def test_a_leaf_changed_in_place():
    with pytest.raises(GraphError, match=r"leaf.*in place") as caught:
        leaf().data = 3.0
    assert "weight" in str(caught.value)


@pytest.mark.parametrize(
    "returned", [lambda g: (), lambda g: (g, g), lambda g: 2.0, lambda g: Variable("text"),
                 lambda g: Variable([1.0]), lambda g: [g]],
)  # fmt: skip
def test_a_wrong_number_or_kind_of_gradients(returned):
    y = function(backward=lambda ctx, g: returned(g)).apply(leaf())
    with pytest.raises(DefinitionError, match=r"OddBackward"):
        y.backward()


def test_an_unregistered_type():
    with pytest.raises(ArgumentTypeError, match=r"does not know values of the type object") as e:
        Variable(object())
    assert "register_space" in str(e.value)
    with pytest.raises(ArgumentTypeError):
        register_space("float", lambda value: value)


def test_a_cycle_through_user_code():
    first = Node("First")
    second = Node("Second", [(first, 0)])
    first.next_functions = [(second, 0)]
    y = leaf() * 2
    y.grad_fn.next_functions = [(first, 0)]
    with pytest.raises(GraphError, match=r"cycle") as caught:
        y.backward()
    assert "First -> Second -> First" in str(caught.value) or "Second -> First" in str(caught.value)


def test_a_list_that_contains_itself():
    endless = []
    endless.append(endless)
    with pytest.raises(ArgumentTypeError, match=r"without end"):
        Variable(endless)


@pytest.mark.parametrize(
    "verb", ["save_for_backward", "save_for_forward", "mark_dirty", "set_materialize_grads",
             "mark_non_differentiable"],
)  # fmt: skip
def test_ctx_misused_in_backward(verb):
    y = function(backward=saving(verb, True)).apply(leaf())
    with pytest.raises(DefinitionError, match=rf"Odd calls ctx.{verb} in backward"):
        y.backward()


def test_ctx_misused_in_forward():
    def twice(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_backward(x)

    def reads(ctx, x):
        return ctx.saved_variables

    def dirty(ctx, x):
        ctx.mark_dirty(Variable(1.0))
        return x * 2

    def number(ctx, x):
        ctx.mark_dirty(2.0)

    def mark(ctx, x):
        ctx.mark_non_differentiable(x * 2)
        return x * 2

    def materialize(ctx, x):
        ctx.set_materialize_grads("no")

    for forward, words in (
        (twice, "twice"), (reads, "before they are saved"), (dirty, "no input"),
        (mark, "no output"), (number, "no Variable"), (materialize, "truth value"),
    ):  # fmt: skip
        with pytest.raises((DefinitionError, ArgumentTypeError), match=words):
            function(forward=forward).apply(leaf())
    with pytest.raises(AttributeError, match=r"'nothing'"):
        function(backward=lambda ctx, g: g * ctx.nothing).apply(leaf()).backward()


def test_an_input_changed_in_forward_and_not_declared():
    def assigned(ctx, x):
        x.data = 5.0
        return x * 1

    def appended(ctx, x):
        x.data.append(1.0)
        return Variable(2.0)

    with pytest.raises(DefinitionError, match=r"in place and does not say so"):
        function(forward=assigned).apply(leaf())
    with pytest.raises(DefinitionError, match=r"in place and does not say so"):
        function(forward=appended).apply(leaf([1.0]))


def test_a_saved_list_changed_since():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Variable(sum(x.data))

    def backward(ctx, g):
        (x,) = ctx.saved_variables
        return Variable([g.data] * len(x.data))

    x = leaf([1.0, 2.0])
    y = function(forward, backward).apply(x)
    x.data.append(3.0)
    with pytest.raises(GraphError, match=r"changed in place since"):
        y.backward()


def test_a_variable_that_forward_was_not_given():
    w = leaf(3.0, role="hidden weight")
    for forward in (lambda ctx, x: x * w, lambda ctx, x: Variable(x.data * w.data)):
        with pytest.raises(DefinitionError, match=r"none of its arguments") as caught:
            function(forward).apply(leaf())
        assert "hidden weight" in str(caught.value)


def test_outputs_that_no_gradient_could_come_back_to():
    for forward in (lambda ctx, x: [x * 2], lambda ctx, x: {"y": x * 2}, lambda ctx, x: x.data):
        with pytest.raises(DefinitionError, match=r"come back"):
            function(forward).apply(leaf())


def test_definitions_that_contradict_themselves():
    async def setup(ctx, inputs, output):
        pass

    static = staticmethod(lambda *args: None)
    for attributes, words in (
        ({"vjp": staticmethod(lambda ctx, g: g)}, "both backward and vjp"),
        ({"gradient": "right"}, "unknown gradient"),
        ({"vmap": static}, "combined form"),
        ({"vmap": static, "generate_vmap_rule": True}, "generate_vmap_rule"),
        ({"setup_context": staticmethod(setup)}, "coroutine"),
    ):
        with pytest.raises(DefinitionError, match=words):
            function(**attributes).apply(leaf())
    with pytest.raises(DefinitionError, match=r"no forward"):
        type("Empty", (Function,), {}).apply(leaf())
    with pytest.raises(DefinitionError, match=r"instance"):
        function()()
    with pytest.raises(ArgumentTypeError, match=r"does not take"):
        function().apply(x=leaf(), y=1)


def test_variables_of_the_wrong_kind():
    with pytest.raises(ArgumentTypeError):
        Variable(leaf())
    with pytest.raises(ArgumentTypeError):
        Variable(1.0, role=3)
    with pytest.raises(ArgumentError):
        Variable(True, requires_grad=True)
    with pytest.raises(ArgumentTypeError, match=r"no add"):
        leaf() + Variable("text")
    with pytest.raises(ArgumentTypeError, match=r"plain value"):
        assert leaf() == 2.0
    with pytest.raises(ArgumentTypeError):
        leaf().grad = Variable("text")
    with pytest.raises(ArgumentTypeError):
        stack([1.0])


def test_forward_mode_and_vmap_refuse_by_name():
    nonlinear = function(gradient="nonlinear")
    secretly = function(backward=lambda ctx, g: g * g)
    for bad in (nonlinear, secretly):
        with pytest.raises(UnsupportedError, match=r"OddBackward.*not linear"):
            jvp(bad.apply, (Variable(1.0),), (Variable(1.0),))
    with pytest.raises(UnsupportedError, match=r"batch inside vmap"):
        vmap(lambda x: x if x > 0 else -x)([1.0, 2.0])
    with pytest.raises(UnsupportedError, match=r"random"):
        vmap(function(random=True).apply)([1.0, 2.0])
    for wrong in (lambda: vmap(lambda x, y: x)([1.0], [1.0, 2.0]), lambda: vmap(lambda x: x)([]),
                  lambda: vmap(lambda x: x, in_dims=1)([1.0])):  # fmt: skip
        with pytest.raises(ArgumentError):
            wrong()


def test_every_error_is_ours():
    for error in (GraphError, DefinitionError, ArgumentError, UnsupportedError):
        assert issubclass(error, PullbackError)
    with pytest.raises(GraphError, match=r"not used"):
        grad(leaf() * 2, leaf())


def test_what_is_no_variable_is_refused_where_one_is_due():
    x = leaf()
    for wrong in (
        lambda: backward(3.0), lambda: backward(None), lambda: backward("x"),
        lambda: grad(x * 2, 3.0), lambda: backward(x * 2, inputs=3),
        lambda: x.register_hook(3), lambda: x.requires_grad_("yes"),
        lambda: function().apply(), lambda: function().apply(x, x),
    ):  # fmt: skip
        with pytest.raises(ArgumentTypeError):
            wrong()


def test_a_whole_number_too_large_for_a_float_is_refused_and_never_an_infinity():
    large = Variable(10**400, requires_grad=True)
    assert (large * 2).data == 2 * 10**400
    for wrong in (
        lambda: large * 1.5, lambda: large + leaf(), lambda: sin(large), lambda: large**-1,
        lambda: large**0.5, lambda: 0.5**large,
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=r"too large"):
            wrong()
        with no_grad(), pytest.raises(ArgumentError, match=r"too large"):
            wrong()
    assert (leaf(10.0) ** leaf(1000.0)).data == float("inf")


def test_leaves_are_copied_and_graphs_are_not():
    x = leaf()
    for twin in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert twin is not x
        assert (twin.data, twin.role, twin.requires_grad) == (2.0, "weight", True)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        for part in (x * 2, (x * 2).grad_fn):
            with pytest.raises(GraphError):
                copied(part)


@pytest.mark.parametrize("keep", [lambda x: [x], lambda x: {"a": (x,)}, lambda x: (x, None)])
def test_what_a_structure_saves_is_watched_as_a_value_saved_alone_is(keep):
    def forward(ctx, x):
        ctx.save_for_backward(keep(x))
        return Variable(x.data**2)

    def backward(ctx, g):
        [saved] = ctx.saved_variables
        [x, *_] = saved.values() if isinstance(saved, dict) else saved
        return g * 2 * (x if isinstance(x, Variable) else x[0])

    square, x = function(forward, backward), leaf(3.0)
    (slope,) = grad(square.apply(x), x, create_graph=True)
    assert grad(slope, x)[0].data == 2.0
    y = square.apply(x)
    with no_grad():
        x.data = 5.0
    with pytest.raises(GraphError, match="saved value was changed in place"):
        y.backward()
    y = square.apply(x)
    y.backward()
    with pytest.raises(GraphError, match="second time"):
        y.backward()


def test_a_list_that_is_an_argument_is_a_constant_on_ctx_too():
    def forward(ctx, x, factors):
        ctx.factors = factors
        return Variable(x.data * factors[0] * factors[1])

    def backward(ctx, g):
        return g * ctx.factors[0] * ctx.factors[1], None

    scale, x = function(forward, backward), leaf(3.0)
    (slope,) = grad(scale.apply(x * x, [2.0, 5.0]), x, create_graph=True)
    assert grad(slope, x)[0].data == 20.0


@pytest.mark.parametrize("factors", [[2.0, 5.0], [], {"a": [2.0]}])
def test_a_list_on_ctx_is_as_it_was_whatever_becomes_of_it(factors):
    def forward(ctx, x, factors):
        ctx.factors = factors
        ctx.save_for_backward(x, factors)
        return Variable(x.data * 1.0)

    def backward(ctx, g):
        seen.append((ctx.factors, ctx.saved_variables[1]))
        return g, None

    seen, before = [], copy.deepcopy(factors)
    y = function(forward, backward).apply(leaf(), factors)
    (factors.get("a") if isinstance(factors, dict) else factors).append(7.0)
    y.backward()
    assert seen == [(before, before)]


def test_what_a_rule_keeps_on_ctx_stays_there_whatever_is_wanted():
    def backward(ctx, g):
        ctx.runs = getattr(ctx, "runs", 0) + 1
        return g * ctx.runs

    x = leaf()
    y = function(backward=backward).apply(x)
    assert [grad(y, x, retain_graph=True)[0].data for _ in range(2)] == [1.0, 2.0]


@pytest.mark.parametrize("again", [[1.0, 2.0, 3.0], "text", 3.0, {"a": 1.0}])
def test_a_leaf_that_is_of_another_kind_by_now_takes_no_gradient(again):
    for value in ([1.0, 2.0], leaf().data, "word"):
        if space_of(value) == space_of(again):
            continue
        x = Variable(value, requires_grad=True)
        other = Variable([1.0, 1.0]) if isinstance(value, list) else Variable(value)
        rules = (lambda ctx, x: Variable(1.0), lambda ctx, g, other=other: other)
        y = function(*rules).apply(x)
        y.backward(retain_graph=True)
        with no_grad():
            x.data = again
        for _ in range(2):
            with pytest.raises(ArgumentTypeError, match="does not belong to its value"):
                y.backward(retain_graph=True)
            x.grad = None


def test_what_only_yields_is_no_decorated_function():
    def numbers():
        yield 1

    async def awaited():
        yield 1

    for wrong in (numbers, awaited, 3, Variable):
        with pytest.raises(ArgumentTypeError, match="function or a coroutine function"):
            no_grad()(wrong)


def test_a_number_has_no_length_and_is_no_list_of_gradients_or_primals():
    x = leaf()
    for wrong, said in (
        (lambda: len(x), "no length"),
        (lambda: grad([x * x], x, Variable(1.0)), "are a list"),
        (lambda: jvp(sin, x, Variable(1.0)), r"Pass \(x,\) for one"),
        (lambda: jvp(lambda v: v[0], Variable([1.0]), Variable([1.0])), r"Pass \(x,\) for one"),
    ):
        with pytest.raises(ArgumentTypeError, match=said):
            wrong()


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole["roots"][0].__setitem__(1, 5),
        lambda whole: whole["roots"][0].__setitem__(0, -1),
        lambda whole: whole["nodes"][0]["next"][0].__setitem__(0, -1),
        lambda whole: whole["nodes"][0]["next"][0].__setitem__(1, 1),
        lambda whole: whole["nodes"][0]["next"][0].__setitem__(1, "0"),
        lambda whole: whole["nodes"][0]["next"][0].__setitem__(0, 0),  # a cycle
        lambda whole: whole["nodes"][0]["outputs"][0].update(space=math.nan),
        lambda whole: whole["nodes"][0]["outputs"][0].update(data=math.nan),
    ],
)
def test_a_graph_read_back_leads_to_its_own_outputs(change):
    whole = json.loads(graph.to_json(leaf() * 2))
    graph.from_json(json.dumps(whole))
    change(whole)
    with pytest.raises(ArgumentError, match="no JSON of a graph"):
        graph.from_json(json.dumps(whole))


def test_json_of_a_graph_can_be_written_and_never_goes_too_deep():
    word = Variable("\ud800", requires_grad=True)
    graph.to_json(word).encode()
    [edge] = graph.from_json(graph.to_json(word))
    assert edge.node.outputs[0].data == word.data
    word.grad = []  # nothing was said of it yet
    assert "0 notes" in graph.summary(word)
    with pytest.raises(ArgumentError, match="no JSON of a graph"):
        graph.from_json("[" * 100_000)


@pytest.mark.parametrize("random", ["bogus", 1, None])
def test_an_unknown_randomness_is_refused(random):
    class Draws(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    Draws.random = random
    with pytest.raises(DefinitionError, match="unknown randomness"):
        Draws.apply(Variable(1.0))


def test_a_hook_that_would_have_to_be_awaited_is_refused():
    class Later:
        async def __call__(self, leaf): ...

    x = Variable(2.0, requires_grad=True)
    for hook in (Later.__call__, functools.partial(Later.__call__, None), Later()):
        for register in (
            x.register_hook, x.register_post_accumulate_grad_hook,
            (x * x).register_hook, (x * x).grad_fn.register_hook, (x * x).grad_fn.register_prehook,
        ):  # fmt: skip
            with pytest.raises(ArgumentTypeError, match="A hook is not awaited"):
                register(hook)
