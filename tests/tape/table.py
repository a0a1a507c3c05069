"""Programs that mean the same on torch and on the tape: each gives what can be observed of it."""

from collections.abc import Callable
from typing import Any

__all__ = ["CASES"]

CASES: dict[str, Callable[[Any], Any]] = {}


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES[function.__name__] = function
    return function


def cube(m):
    class Cube(m.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x * x * 3)

    return Cube


def split_product(m):
    class Product(m.Function):
        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

        @staticmethod
        def jvp(ctx, dx, dy):
            x, y = ctx.saved_tensors
            return dx * y + x * dy

    return Product


def two_outputs(m, materialize=True):
    class Two(m.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(materialize)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            if not materialize:
                a = 0 if a is None else a * 2
                return a if b is None else b * 3 + a
            return a * 2 + b * 3

    return Two


for _name, _call in {
    "add": lambda m, x, y: x + y,
    "subtract": lambda m, x, y: x - y,
    "multiply": lambda m, x, y: x * y,
    "divide": lambda m, x, y: x / y,
    "power": lambda m, x, y: x**y,
    "negative": lambda m, x, y: -x * y,
    "absolute": lambda m, x, y: abs(x - y),
    "sine": lambda m, x, y: m.sin(x * y),
    "cosine": lambda m, x, y: m.cos(x * y),
    "exponential": lambda m, x, y: m.exp(x - y),
    "logarithm": lambda m, x, y: m.log(x) * m.log(y),
    "tangent": lambda m, x, y: m.tanh(x - y),
    "root": lambda m, x, y: m.sqrt(x) / m.sqrt(y),
    "polynomial": lambda m, x, y: x**3 - x * y * 2 + y**2,
    "constants": lambda m, x, y: 3 - 2 * x + y / 4 - 1 / x + 2**y,
    "quotient": lambda m, x, y: m.sin(x) / (1 + m.exp(-y)),
}.items():

    def _arithmetic(m, call=_call):
        x, y = m.V(1.3, True), m.V(0.7, True)
        z = call(m, x, y)
        first = m.grad(z, (x, y), create_graph=True)
        second = [
            m.grad(g, (x, y), retain_graph=True, allow_unused=True) if g.requires_grad else None
            for g in first
        ]
        _, change = m.jvp(lambda x, y: call(m, x, y), (m.V(1.3), m.V(0.7)), (m.V(0.3), m.V(-2.0)))
        return (
            m.value(z),
            m.value(first),
            [[0.0 if v is None else v for v in m.value(s)] if s else [0.0, 0.0] for s in second],
            m.value(change),
        )

    _arithmetic.__name__ = f"{_name}_to_second_order_and_forward"
    case(_arithmetic)


for _name, _numbers in {
    "division_by_zero": (lambda m, x, y: x / y, 1.0, 0.0),
    "zero_to_a_half": (lambda m, x, y: x**y, 0.0, 0.5),
    "zero_to_zero": (lambda m, x, y: x**y, 0.0, 0.0),
    "negative_to_a_half": (lambda m, x, y: x**y, -1.0, 0.5),
    "absolute_of_zero": (lambda m, x, y: abs(x) * y, 0.0, 2.0),
    "logarithm_of_zero": (lambda m, x, y: m.log(x) * y, 0.0, 1.0),
    "overflow": (lambda m, x, y: m.exp(x * y), 1000.0, 1.0),
    "overflow_of_a_power": (lambda m, x, y: x**y, -1e200, 3.0),
    "overflow_of_no_power": (lambda m, x, y: x**y, -1e200, 2.5),
}.items():

    def _special(m, numbers=_numbers):
        call, a, b = numbers
        x, y = m.V(a, True), m.V(b, True)
        z = call(m, x, y)
        return m.value(z), m.value(m.grad(z, (x, y)))

    _special.__name__ = f"special_{_name}"
    case(_special)


@case
def leaf_and_result_flags(m):
    x = m.V(2.0, True)
    y = x * x
    return x.is_leaf, y.is_leaf, x.requires_grad, y.requires_grad, x.grad_fn is None, y.output_nr


@case
def a_constant_has_no_history(m):
    x = m.V(2.0)
    y = x * x
    return y.is_leaf, y.requires_grad, y.grad_fn is None, m.raises(y.backward)


@case
def grad_is_none_before_and_accumulates(m):
    x = m.V(2.0, True)
    before = x.grad is None
    (x * x).backward()
    once = m.value(x.grad)
    (x * x * x).backward()
    return before, once, m.value(x.grad)


@case
def grad_can_be_set_to_none(m):
    x = m.V(2.0, True)
    (x * x).backward()
    x.grad = None
    (x * x).backward()
    return m.value(x.grad)


@case
def next_functions_of_a_product(m):
    x, y = m.V(2.0, True), m.V(3.0)
    z = x * y
    return m.structure(z.grad_fn), m.structure((z * z).grad_fn)


@case
def next_functions_of_a_function(m):
    Product, Cube = split_product(m), cube(m)
    x, y = m.V(2.0, True), m.V(3.0)
    z = Cube.apply(Product.apply(x, y))
    return m.structure(z.grad_fn), z.grad_fn.name(), z.grad_fn.next_functions[0][0].name()


@case
def next_functions_of_two_outputs(m):
    a, b = two_outputs(m).apply(m.V(2.0, True))
    return a.output_nr, b.output_nr, a.grad_fn is b.grad_fn, m.structure((a * b).grad_fn)


@case
def a_leaf_has_one_accumulating_node(m):
    x = m.V(2.0, True)
    first, second = (x * x).grad_fn.next_functions
    return first[0] is second[0], first[0].variable is x


@case
def the_combined_form(m):
    x = m.V(2.0, True)
    y = cube(m).apply(x)
    y.backward()
    return m.value(y), m.value(x.grad)


@case
def the_split_form(m):
    x, y = m.V(2.0, True), m.V(5.0, True)
    return m.value(m.grad(split_product(m).apply(x, y), (x, y)))


@case
def a_function_twice_and_thrice(m):
    x = m.V(2.0, True)
    (a,) = m.grad(cube(m).apply(x), x, create_graph=True)
    (b,) = m.grad(a, x, create_graph=True)
    (c,) = m.grad(b, x)
    return m.value([a, b, c])


@case
def a_jvp_of_ones_own(m):
    Product = split_product(m)
    out, change = m.jvp(Product.apply, (m.V(2.0), m.V(5.0)), (m.V(1.0), m.V(3.0)))
    return m.value(out), m.value(change)


@case
def vjp_pulls_back(m):
    out, pull = m.vjp(lambda x, y: m.sin(x) * y, m.V(2.0), m.V(5.0))
    return m.value(out), m.value(pull(m.V(1.5)))


@case
def both_outputs_flow_back(m):
    x = m.V(2.0, True)
    a, b = two_outputs(m).apply(x)
    (a * b).backward()
    return m.value(x.grad)


@case
def an_unused_output_is_a_zero(m):
    x = m.V(2.0, True)
    a, _ = two_outputs(m).apply(x)
    return m.value(m.grad(a * 4, x))


@case
def an_unused_output_is_none_if_asked(m):
    x = m.V(2.0, True)
    _, b = two_outputs(m, materialize=False).apply(x)
    return m.value(m.grad(b * 4, x))


@case
def needs_input_grad_says_what_is_wanted(m):
    seen = []

    class Three(m.Function):
        @staticmethod
        def forward(ctx, x, number, y):
            seen.append(ctx.needs_input_grad)
            return x * y * number

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g, None, g

    Three.apply(m.V(1.0, True), 2.0, m.V(3.0)).backward()
    Three.apply(m.V(1.0), 2.0, m.V(3.0, True)).backward()
    return [list(flags) for flags in seen]


@case
def forward_runs_without_recording(m):
    seen = []

    class Look(m.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(m.is_grad_enabled())
            y = x * x
            seen.append(y.requires_grad)
            return y

        @staticmethod
        def backward(ctx, g):
            seen.append(m.is_grad_enabled())
            return g

    x = m.V(2.0, True)
    Look.apply(x).backward()
    m.grad(Look.apply(x), x, create_graph=True)
    return seen[:6]  # the tape audits a recorded rule: it runs both again


@case
def plain_outputs_pass_through(m):
    class Both(m.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, "text", 3

        @staticmethod
        def backward(ctx, g, text, number):
            assert text is None
            assert number is None
            return g * 2

    x = m.V(2.0, True)
    y, text, number = Both.apply(x)
    y.backward()
    return text, number, m.value(x.grad)


@case
def an_input_returned_as_it_is(m):
    class Same(m.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 7

    x = m.V(2.0, True)
    y = Same.apply(x)
    y.backward()
    return y is x, x.is_leaf, y.is_leaf, m.value(x.grad)


@case
def outputs_that_are_not_differentiable(m):
    class Mark(m.Function):
        @staticmethod
        def forward(ctx, x):
            y, z = x * 2, x * 3
            ctx.mark_non_differentiable(z)
            return y, z

        @staticmethod
        def backward(ctx, g, h):
            return g * 2 + h

    x = m.V(2.0, True)
    y, z = Mark.apply(x)
    y.backward()
    return y.requires_grad, z.requires_grad, z.is_leaf, m.value(x.grad)


def doubled_in_place(m):
    class Double(m.Function):
        @staticmethod
        def forward(ctx, x):
            m.scale(x, 2.0)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return Double


@case
def an_input_changed_in_place(m):
    x = m.V(2.0, True)
    y = x * x
    z = doubled_in_place(m).apply(y)
    (z * y).backward()
    return z is y, m.value(z), m.value(x.grad), m.structure(z.grad_fn)


@case
def a_leaf_changed_in_place(m):
    return m.raises(lambda: doubled_in_place(m).apply(m.V(2.0, True)))


@case
def a_leaf_changed_in_place_by_hand(m):
    x = m.V(2.0, True)
    return m.raises(lambda: m.scale(x, 2.0))


@case
def a_leaf_changed_without_recording(m):
    x = m.V(2.0, True)
    with m.no_grad():
        m.scale(x, 2.0)
    (x * x).backward()
    return m.value(x), m.value(x.grad), x.is_leaf


@case
def a_saved_input_changed_since(m):
    x = m.V(2.0, True)
    y = cube(m).apply(x)
    with m.no_grad():
        m.set(x, 5.0)
    return m.raises(y.backward)


@case
def a_saved_output_changed_since(m):
    x = m.V(2.0, True)
    y = m.exp(x)
    with m.no_grad():
        m.set(y, 5.0)
    return m.raises(y.backward)


@case
def an_unsaved_value_changed_since(m):
    x = m.V(2.0, True)
    y = x * 3
    z = y + 1
    with m.no_grad():
        m.set(y, 5.0)
    z.backward()
    return m.value(x.grad)


@case
def backward_twice(m):
    x = m.V(2.0, True)
    y = x * x
    y.backward()
    return m.raises(y.backward), m.value(x.grad)


@case
def backward_twice_where_nothing_is_saved(m):
    x = m.V(2.0, True)
    y = x + x
    y.backward()
    y.backward()
    return m.value(x.grad)


@case
def a_retained_graph(m):
    x = m.V(2.0, True)
    y = cube(m).apply(x)
    y.backward(retain_graph=True)
    y.backward()
    return m.value(x.grad), m.raises(y.backward)


@case
def create_graph_retains(m):
    x = m.V(2.0, True)
    y = cube(m).apply(x)
    m.grad(y, x, create_graph=True)
    return m.value(m.grad(y, x))


@case
def grad_touches_no_leaf(m):
    x, y = m.V(2.0, True), m.V(3.0, True)
    gradient = m.grad(x * y, x)
    return m.value(gradient), x.grad is None, y.grad is None


@case
def grad_of_an_interior_value(m):
    x = m.V(2.0, True)
    y = x * x
    z = m.sin(y) * y
    return m.value(m.grad(z, (y, x)))


@case
def grad_at_an_edge(m):
    x = m.V(2.0, True)
    y = x * x
    z = y * y
    return m.value(m.grad(z, (m.get_gradient_edge(y), m.get_gradient_edge(x))))


@case
def grad_of_several_outputs(m):
    x = m.V(2.0, True)
    return m.value(m.grad([x * x, x * 3], x, [m.V(0.5), m.V(2.0)]))


@case
def an_unused_input(m):
    x, y = m.V(2.0, True), m.V(3.0, True)
    z = x * x
    error = m.raises(lambda: m.grad(z, (x, y), retain_graph=True))
    allowed = m.value(m.grad(z, (x, y), allow_unused=True, retain_graph=True))
    return error, allowed, m.value(m.grad(z, (x, y), materialize_grads=True))


@case
def an_input_that_requires_nothing(m):
    x, y = m.V(2.0, True), m.V(3.0)
    return m.raises(lambda: m.grad(x * y, y))


@case
def backward_to_chosen_inputs(m):
    x, y = m.V(2.0, True), m.V(3.0, True)
    m.backward(x * y, inputs=[y])
    return x.grad is None, m.value(y.grad)


@case
def backward_to_no_inputs(m):
    x = m.V(2.0, True)
    return m.raises(lambda: m.backward(x * x, inputs=[]))


@case
def backward_from_two_roots(m):
    x = m.V(2.0, True)
    y = x * x
    m.backward([y, y * x], [m.V(1.0), m.V(0.5)])
    return m.value(x.grad)


@case
def backward_on_a_leaf(m):
    x = m.V(2.0, True)
    x.backward()
    return m.value(x.grad)


@case
def a_wrong_number_of_given_gradients(m):
    x = m.V(2.0, True)
    return m.raises(lambda: m.backward([x * x, x * 3], [m.V(1.0)]))


@case
def too_few_gradients_returned(m):
    class Wrong(m.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g

    z = Wrong.apply(m.V(1.0, True), m.V(2.0, True))
    return m.raises(z.backward)


@case
def too_many_gradients_returned(m):
    class Wrong(m.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g, g

    z = Wrong.apply(m.V(1.0, True))
    return m.raises(z.backward)


@case
def extra_gradients_that_are_none(m):
    class Extra(m.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2, None, None

    x = m.V(1.0, True)
    Extra.apply(x).backward()
    return m.value(x.grad)


@case
def a_gradient_that_is_no_variable(m):
    class Wrong(m.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return 2.0

    z = Wrong.apply(m.V(1.0, True))
    return m.raises(z.backward)


@case
def no_backward(m):
    class Forward(m.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    z = Forward.apply(m.V(1.0, True))
    return m.raises(z.backward)


@case
def both_names_of_backward(m):
    class Twice(m.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def vjp(ctx, g):
            return g * 2

    x = m.V(1.0, True)
    Twice.apply(x).backward()
    return m.value(x.grad)


@case
def once_differentiable_gives_one_derivative(m):
    class Once(m.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @m.once
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x * 2

    x = m.V(3.0, True)
    seed = m.V(1.0, True)
    first = m.grad(Once.apply(x), x, seed, create_graph=True)[0]
    return m.value(first), m.raises(lambda: m.grad(first, seed))


@case
def no_grad_records_nothing(m):
    x = m.V(2.0, True)
    with m.no_grad():
        y = x * x
        with m.enable_grad():
            z = x * x
    return y.requires_grad, z.requires_grad, m.is_grad_enabled()


@case
def set_grad_enabled_both_ways(m):
    seen = []
    m.set_grad_enabled(False)
    seen.append(m.is_grad_enabled())
    m.set_grad_enabled(True)
    with m.set_grad_enabled(False):
        seen.append(m.is_grad_enabled())
    seen.append(m.is_grad_enabled())

    @m.no_grad()
    def inside():
        return m.is_grad_enabled()

    return [*seen, inside(), m.is_grad_enabled()]


@case
def detach_cuts_history(m):
    x = m.V(2.0, True)
    y = x * x
    z = y.detach() * x
    z.backward()
    return y.detach().requires_grad, m.value(x.grad)


@case
def requires_grad_is_switched(m):
    x = m.V(2.0)
    x.requires_grad_()
    y = x * x
    error = m.raises(lambda: setattr(y, "requires_grad", False))
    x.requires_grad = False
    return x.requires_grad, error, y.requires_grad


@case
def hooks_on_a_leaf(m):
    x = m.V(2.0, True)
    seen = []
    handle = x.register_hook(lambda g: seen.append(m.value(g)))
    x.register_hook(lambda g: g * 10)
    (x * x).backward()
    handle.remove()
    (x * x).backward()
    return seen, m.value(x.grad)


@case
def hooks_between(m):
    x = m.V(2.0, True)
    y = x * x
    y.register_hook(lambda g: g * 5)
    seen = []
    y.register_hook(lambda g: seen.append(m.value(g)))
    (y * 3 + y).backward()
    return seen, m.value(x.grad)


@case
def hooks_need_history(m):
    return m.raises(lambda: m.V(2.0).register_hook(lambda g: g))


@case
def hooks_on_a_node(m):
    x = m.V(2.0, True)
    y = x * x
    seen = []
    y.grad_fn.register_prehook(lambda received: (received[0] * 3,))
    y.grad_fn.register_hook(
        lambda sent, received: seen.append((m.value(list(sent)), m.value(list(received))))
    )
    y.backward()
    return seen, m.value(x.grad)


@case
def hooks_of_a_value_go_before_those_of_its_node(m):
    x = m.V(0.5, True)
    y = x * 1.0
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_prehook(lambda received: (received[0] * received[0],))
    y.register_hook(lambda g: g * 3)
    y.backward()
    return m.value(y.grad), m.value(x.grad)


@case
def hooks_before_a_rule_that_does_not_run(m):
    x = m.V(3.0, True)
    y = x * x
    node, leaf = y.grad_fn, y.grad_fn.next_functions[0][0]
    node.register_prehook(lambda received: (received[0] * 100,))
    leaf.register_prehook(lambda received: (received[0] * 7,))
    y.register_hook(lambda g: g * 2)
    found = [m.value(m.grad(y * 2, wanted, retain_graph=True)[0]) for wanted in (y, x)]
    m.backward(y * 2, inputs=[x], retain_graph=True)
    found.append(m.value(x.grad))
    m.backward(y * 2)
    return found, m.value(x.grad)


@case
def hooks_that_look_beside_one_that_computes(m):
    x = m.V(3.0, True)
    y = x * x
    seen = []
    y.register_hook(lambda g: seen.append(m.value(g)))
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_prehook(lambda received: seen.append(m.value(received[0])))
    y.grad_fn.register_prehook(lambda received: (received[0] * 5,))
    y.grad_fn.register_hook(lambda sent, received: seen.append(m.value(received[0])))
    y.grad_fn.register_hook(lambda sent, received: tuple(each * 3 for each in sent))
    (slope,) = m.grad(y * y, x, create_graph=True)
    return m.value(slope), m.value(m.grad(slope, x)[0]), seen


@case
def hooks_on_the_node_of_a_leaf(m):
    x = m.V(2.0, True)
    y = x * x
    seen = []
    y.grad_fn.next_functions[0][0].register_hook(
        lambda sent, received: seen.append((list(sent), m.value(list(received)), m.value(x.grad)))
    )
    m.grad(y, x, retain_graph=True)
    m.backward(y, inputs=[x], retain_graph=True)
    y.backward()
    return seen


@case
def hooks_after_accumulation(m):
    x = m.V(2.0, True)
    seen = []
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(m.value(leaf.grad)))
    (x * x).backward()
    (x * x).backward()
    return seen, m.raises(lambda: (x * x).register_post_accumulate_grad_hook(seen.append))


@case
def retained_gradients(m):
    x = m.V(2.0, True)
    y = x * x
    y.retain_grad()
    (y * y).backward()
    return m.value(y.grad), m.value(x.grad)


@case
def hooks_on_saved_values(m):
    count = [0, 0]

    def pack(value):
        count[0] += 1
        return m.value(value)

    def unpack(number):
        count[1] += 1
        return m.V(number)

    x = m.V(2.0, True)
    with m.saved_hooks(pack, unpack):
        y = cube(m).apply(x)
    y.backward()
    return count, m.value(x.grad)


@case
def attributes_on_ctx(m):
    class Scale(m.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    x = m.V(2.0, True)
    (first,) = m.grad(Scale.apply(Scale.apply(x, 3.0) * x, 2.0), x, create_graph=True)
    return m.value(first), m.value(m.grad(first, x))


@case
def an_instance_is_refused(m):
    x = m.V(2.0, True)
    return m.raises(lambda: cube(m)()(x))


@case
def saving_too_late_or_twice(m):
    class Late(m.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g

    # An input that is marked dirty and not returned.
    return m.raises(lambda: Late.apply(m.V(1.0, True) * 1))


@case
def a_diamond(m):
    x = m.V(1.1, True)
    y = m.sin(x)
    for _ in range(12):
        y = y * m.cos(y) + y
    y.backward()
    return m.value(x.grad)


@case
def grad_inside_a_function(m):
    x = m.V(2.0, True)

    def slope(v):
        return m.grad(m.sin(v) * v, v, create_graph=True)[0]

    z = slope(x) * x
    z.backward()
    return m.value(x.grad)


# Batches, and each way of differentiating inside, around and after another.


def batched_product(m, rule=False):
    class Batched(split_product(m)):
        generate_vmap_rule = not rule

    def vmap(info, in_dims, x, y):
        rows = [
            (x[i] if in_dims[0] == 0 else x) * (y[i] if in_dims[1] == 0 else y)
            for i in range(info.batch_size)
        ]
        return m.stack(rows), 0

    if rule:
        Batched.vmap = staticmethod(vmap)
    return Batched


for _name, (_make, _dims) in {
    "polynomial": (lambda m: lambda x, y: x**3 - x * y * 2 + y**2, (0, 0)),
    "quotient": (lambda m: lambda x, y: m.sin(x) / (1 + m.exp(-y)), (0, None)),
    "power": (lambda m: lambda x, y: x**y, (None, 0)),
    "root": (lambda m: lambda x, y: m.sqrt(x) * m.log(y) + 2, (0, 0)),
    "function": (lambda m: batched_product(m).apply, (0, 0)),
    "function_shared": (lambda m: batched_product(m).apply, (0, None)),
    "rule": (lambda m: batched_product(m, rule=True).apply, (0, 0)),
    "rule_shared": (lambda m: batched_product(m, rule=True).apply, (None, 0)),
}.items():

    def _batch(m, make=_make, dims=_dims):
        x = m.V([1.3, 0.4, 2.0] if dims[0] == 0 else 1.3, True)
        y = m.V([0.7, 1.5, 0.2] if dims[1] == 0 else 0.7, True)
        z = m.vmap(make(m), in_dims=dims)(x, y)
        first = m.grad(z, (x, y), m.V([1.0, -2.0, 0.5]))
        return m.value(z), m.value(first)

    _batch.__name__ = f"batch_of_{_name}"
    case(_batch)


@case
def a_batch_of_batches(m):
    x = m.V([[1.0, 2.0], [3.0, 4.0]], True)
    z = m.vmap(m.vmap(lambda v: m.sin(v) * v))(x)
    return m.value(z), m.value(m.grad(z, (x,), m.V([[1.0, 2.0], [0.5, -1.0]])))


@case
def a_batch_of_two_outputs(m):
    x, y = m.V([1.0, 2.0]), m.V(3.0)
    return m.value(m.vmap(lambda a, b: (a * b, a - b), in_dims=(0, None))(x, y))


@case
def gradients_inside_a_batch(m):
    def slope(x):
        _, pull = m.vjp(lambda v: m.exp(v) * v, x)
        return pull(m.V(1.0))[0]

    return m.value(m.vmap(slope)(m.V([0.5, 1.0, -2.0])))


@case
def tangents_inside_a_batch(m):
    def push(x, t):
        return m.jvp(lambda v: m.tanh(v) * v, (x,), (t,))[1]

    return m.value(m.vmap(push)(m.V([0.5, 1.0]), m.V([2.0, -1.0])))


@case
def tangents_around_a_batch(m):
    squares = m.vmap(lambda v: v * v * 3)
    return m.value(m.jvp(squares, (m.V([1.0, 2.0]),), (m.V([1.0, -3.0]),)))


def slope_of(m, call):
    """The derivative in reverse mode, as a callable."""

    def slope(x):
        return m.vjp(call, x)[1](m.V(1.0))[0]

    return slope


def tangent_of(m, call):
    """The derivative in forward mode, as a callable."""

    def tangent(x):
        return m.jvp(call, (x,), (m.V(1.0),))[1]

    return tangent


for _outer in (slope_of, tangent_of):
    for _inner in (slope_of, tangent_of):

        def _composed(m, outer=_outer, inner=_inner):
            def call(v):
                return m.sin(v * v) / (1 + m.exp(v)) + abs(v) ** 2.5

            twice = outer(m, inner(m, call))
            return m.value(twice(m.V(0.8))), m.value(slope_of(m, twice)(m.V(0.8)))

        _composed.__name__ = f"{_outer.__name__}_a_{_inner.__name__}_thrice"
        case(_composed)


@case
def a_jvp_of_ones_own_and_then_reverse(m):
    call = tangent_of(m, lambda v: split_product(m).apply(v, v * v))
    return m.value(slope_of(m, call)(m.V(1.5)))


@case
def a_third_derivative_in_reverse(m):
    x = m.V(0.7, True)
    y = m.sin(x) * m.log(x)
    for _ in range(2):
        (y,) = m.grad(y, (x,), create_graph=True)
    return m.value(m.grad(y, (x,)))


@case
def a_rule_beyond_what_is_wanted_rests(m):
    runs = []

    class Square(m.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            runs.append(1)
            (x,) = ctx.saved_tensors
            return g * x * 2

    x = m.V(3.0, True)
    y = Square.apply(x)
    z = Square.apply(y)
    inner = m.value(m.grad(z, y))
    itself = m.value(m.grad(y, y, retain_graph=True))
    before = len(runs)
    return inner, itself, before, m.value(m.grad(y, x)), m.raises(lambda: m.grad(y, x))


@case
def a_leaf_that_requires_no_gradient_any_more(m):
    x, y = m.V(3.0, True), m.V(2.0, True)
    z = x * y
    x.requires_grad_(False)
    z.backward()
    return x.grad is None, m.value(y.grad)
