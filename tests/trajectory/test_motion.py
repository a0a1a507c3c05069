"""`Motion` and `State`: fields, shapes, the states with names, pytrees, and errors."""

import dataclasses
from decimal import Decimal

import pytest
import torch
from torch.utils import _pytree as pytree

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import (
    Limits,
    Motion,
    Spline,
    State,
    differentiate,
    free,
    hold,
    minimum_jerk,
    rest,
)

F64 = {"dtype": torch.float64}
PARTS = ("position", "velocity", "acceleration", "jerk")


def motion(*shape, dt=None):
    parts = (torch.randn(shape, **F64) for _ in PARTS)
    return Motion(*parts, torch.tensor(0.5, **F64) if dt is None else dt)


def test_the_fields_are_those_of_the_issue():
    assert [field.name for field in dataclasses.fields(Motion)] == [*PARTS, "dt", "start_time"]
    assert [field.name for field in dataclasses.fields(State)] == list(PARTS)


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 3, 5, 1), (0, 5, 7), (1, 0)])
def test_horizon_and_dof(shape):
    assert (motion(*shape).horizon, motion(*shape).dof) == shape[-2:]


def test_times_of_every_kind_of_step():
    assert motion(4, 1).times.tolist() == [0.0, 0.5, 1.0, 1.5]
    steps = torch.tensor([0.5, 0.25, 1.0], **F64)
    assert motion(4, 1, dt=steps).times.tolist() == [0.0, 0.5, 0.75, 1.75]
    each = torch.stack([steps, 2 * steps])
    assert motion(2, 4, 1, dt=each).times.tolist() == [[0, 0.5, 0.75, 1.75], [0, 1, 1.5, 3.5]]


def test_times_are_differentiable():
    dt = torch.tensor(0.5, **F64, requires_grad=True)
    motion(4, 1, dt=dt).times[-1].backward()
    assert dt.grad.item() == 3.0


@pytest.mark.parametrize("dt", [0.5, torch.tensor(0.5), torch.full((5,), 0.5)])
def test_a_motion_keeps_the_steps_that_it_was_made_with(dt):
    made = differentiate(torch.randn(6, 2), dt)
    assert isinstance(made.dt, torch.Tensor)
    assert torch.equal(made.times, 0.5 * torch.arange(6))


def test_parts_of_different_shapes_are_refused():
    small, large = torch.zeros(5, 7), torch.zeros(6, 7)
    for place in range(4):
        parts = [small] * 4
        parts[place] = large
        with pytest.raises(ArgumentError, match=r"one shape") as raised:
            Motion(*parts, torch.tensor(0.1))
        assert "(6, 7)" in str(raised.value)


def test_both_are_frozen_and_compare_by_identity():
    one, state = motion(5, 2), State(velocity=torch.zeros(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.jerk = one.position
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.velocity = 1.0
    # Tensors have no single truth, so equality of values would raise.
    assert one == one
    assert one != motion(5, 2)
    assert len({state, State(velocity=torch.zeros(2))}) == 2


def test_a_motion_is_a_pytree_of_five():
    one = motion(5, 2)
    paths, spec = pytree.tree_flatten_with_path(one)
    assert [pytree.keystr(path) for path, _ in paths] == [f".{name}" for name in (*PARTS, "dt")]
    doubled = pytree.tree_unflatten([2 * leaf for _, leaf in paths], spec)
    assert torch.equal(doubled.jerk, 2 * one.jerk)
    twice = torch.func.vmap(lambda some: pytree.tree_map(lambda leaf: 2 * leaf, some))
    many = motion(5, 4, 2, dt=torch.ones(5, 3, **F64))
    assert torch.equal(twice(many).dt, 2 * torch.ones(5, 3, **F64))


def test_a_state_is_a_pytree_of_its_tensors():
    state = State(torch.ones(2), 0.0, None, torch.zeros(2))
    leaves, spec = pytree.tree_flatten(state)
    assert len(leaves) == 2
    again = pytree.tree_unflatten(leaves, spec)
    assert again.given == ("position", "velocity", "jerk")
    assert again.velocity == 0.0
    assert pytree.tree_leaves(rest) == pytree.tree_leaves(hold) == pytree.tree_leaves(free) == []

    def jerk(state):
        return differentiate(torch.zeros(5, 2), 0.5, start=state).jerk.sum()

    gradient = torch.func.grad(jerk)(State(velocity=torch.ones(2), acceleration=0.0))
    assert gradient.velocity.shape == (2,)
    assert gradient.acceleration == 0.0


@pytest.mark.parametrize(
    "value",
    [
        motion(5, 2),
        dataclasses.replace(motion(5, 2), start_time=torch.tensor(1.0)),
        State(torch.ones(2), 0.0, (1.0, 2.0)),
        Limits(velocity=(-1.0, 2.0), jerk=torch.ones(2), between=True),
        Spline(torch.arange(3.0), torch.zeros(2, 4, 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_structure_is_the_same_once_written_and_read(value):
    leaves, spec = pytree.tree_flatten(value)
    again = pytree.treespec_loads(pytree.treespec_dumps(spec))
    assert again == spec
    rebuilt = pytree.tree_unflatten(leaves, again)
    for field in dataclasses.fields(value):
        before, after = getattr(value, field.name), getattr(rebuilt, field.name)
        assert after is before or after == before


def test_the_states_with_names():
    assert free.given == ()
    assert rest.given == ("velocity", "acceleration")
    assert hold.given == ("velocity", "acceleration", "jerk")
    for state in (rest, hold):
        assert all(getattr(state, name) == 0.0 for name in state.given)


def test_a_state_that_is_given_holds_exactly_and_one_left_out_is_free():
    x = torch.randn(6, 2, **F64)
    start = dataclasses.replace(hold, position=torch.ones(2, **F64))
    whole = differentiate(x, 0.1, start=start, goal=rest)
    assert torch.equal(whole.position[0], torch.ones(2, **F64))
    for name in ("velocity", "acceleration", "jerk"):
        assert torch.equal(getattr(whole, name)[0], torch.zeros(2, **F64))
    assert not torch.equal(whole.jerk[-1], torch.zeros(2, **F64))
    loose = differentiate(x, 0.1)
    for one, other in zip(
        pytree.tree_leaves(differentiate(x, 0.1, start=free, goal=free)),
        pytree.tree_leaves(loose),
        strict=True,
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("wrong", ["fast", b"fast", True])
def test_what_is_no_part_of_a_state_is_refused(name, wrong):
    with pytest.raises(ArgumentTypeError, match=f"The {name} of a state") as raised:
        State(**{name: wrong})
    assert repr(wrong) in str(raised.value)


def test_whole_numbers_are_numbers():
    x = torch.randn(6, 2, **F64)
    one = differentiate(x, 0.1, start=State(velocity=1))
    assert torch.equal(one.velocity[0], torch.ones(2, **F64))
    least = minimum_jerk(x[:2], 1, start=State(velocity=1, acceleration=0), samples=20)
    torch.testing.assert_close(least.velocity[0], torch.ones(2, **F64))


def test_numbers_for_times_become_tensors() -> None:
    still = torch.zeros(3, 1)
    motion = Motion(still, still, still, still, 0.5, start_time=2)  # pyrefly: ignore
    assert motion.times.tolist() == [2.0, 2.5, 3.0]
    assert motion[1:].times.tolist() == [2.5, 3.0]
    assert (motion.dt.dtype, motion.times.dtype) == (torch.float32, torch.float64)


def test_compiled_once_for_sizes_that_vary():
    def jerk(x):
        return differentiate(x, 0.1)[1:4].jerk

    torch._dynamo.reset()
    compiled = torch.compile(jerk, fullgraph=True, backend="eager")
    for batch, horizon in ((2, 9), (3, 12)):  # from the second on, sizes are symbols
        x = torch.randn(batch, horizon, 2, **F64)
        torch.testing.assert_close(compiled(x), jerk(x))


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (torch.full((9,), 0.1), ArgumentError),
        (torch.full((1,), 0.1), ArgumentError),
        (torch.full((2, 8), 0.1), ArgumentError),
        (torch.tensor(float("nan")), ArgumentError),
        (torch.tensor([0.1] * 7 + [-0.1]), ArgumentError),
        (torch.tensor(1), ArgumentTypeError),
        (torch.tensor(True), ArgumentTypeError),
        (0.0, ArgumentError),
        (float("nan"), ArgumentError),
        (1e-60, ArgumentError),
        (10**400, ArgumentError),
        (True, ArgumentTypeError),
        (None, ArgumentTypeError),
        ("fast", ArgumentTypeError),
        ([0.1] * 8, ArgumentTypeError),
        (Decimal("0.1"), ArgumentTypeError),
    ],
    ids=repr,
)
def test_steps_that_are_none_are_refused(seconds, error):
    still = torch.zeros(9, 1)
    with pytest.raises(error, match="The dt of a motion"):
        Motion(still, still, still, still, seconds)


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (torch.zeros(3), ArgumentError),
        (float("inf"), ArgumentError),
        (torch.tensor([0.0, float("nan")]), ArgumentError),
        (torch.tensor(1), ArgumentTypeError),
        ("now", ArgumentTypeError),
    ],
    ids=repr,
)
def test_start_times_that_are_none_are_refused(start, error):
    still = torch.zeros(2, 9, 1)
    with pytest.raises(error, match="The start_time of a motion"):
        Motion(still, still, still, still, 0.1, start)


@pytest.mark.parametrize("wrong", [None, [[0.0]], 0.0, "x", torch.zeros(9, 1, dtype=torch.int64)])
def test_parts_that_are_no_floating_tensors_are_refused(wrong):
    for place, name in enumerate(PARTS):
        parts = [torch.zeros(9, 1)] * 4
        parts[place] = wrong
        with pytest.raises(ArgumentTypeError, match=f"The {name} of a motion"):
            Motion(*parts, 0.1)


def test_a_batch_of_scalar_steps_from_vmap_has_no_times_of_its_own():
    x, dt = torch.randn(3, 9, 2, **F64), torch.tensor([0.1, 0.2, 0.3], **F64)
    many = torch.func.vmap(differentiate)(x, dt)
    assert torch.equal(many.dt, dt)
    with pytest.raises(ArgumentError, match="The dt of a motion"):
        assert many.times is None
    times = torch.func.vmap(lambda motion: motion.times)(many)
    torch.testing.assert_close(times, dt[:, None] * torch.arange(9, **F64))


def test_a_motion_says_where_vmap_maps():
    x = torch.randn(3, 9, 2, **F64)
    many = differentiate(x, 0.1)
    where = Motion(0, 0, 0, 0, None)
    got = torch.func.vmap(lambda motion: motion[2:].position, in_dims=(where,))(many)
    assert torch.equal(got, x[:, 2:])


def test_a_motion_is_cut_between_whole_samples():
    for wrong in (slice(1.5, 3), slice("a", None)):
        with pytest.raises(ArgumentTypeError, match="whole samples"):
            motion(5, 2)[wrong]
