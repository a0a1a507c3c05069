"""The codec of arguments: plain data and back, and nothing executed in between."""

import dataclasses
import enum
import functools
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from torch.testing._internal.two_tensor import TwoTensor

from pullback.errors import RecordingError
from pullback.recording.codec import Encoder, Loader, NotPlain, StrictLoader, decode_call


class Color(enum.Enum):
    RED = 1


def shout(text: str) -> str:
    return text.upper()


class Holder:
    def __init__(self, value) -> None:
        self.value = value

    def double(self):
        return self.value * 2


class Absent:
    """Neither a number nor none."""


ABSENT, FULL = Absent(), Holder(3)


def round_trip(*values):
    encoder = Encoder(2**20)
    encoded = [encoder.encode(value) for value in values]
    return list(decode_call(encoded, [], encoder.tensors, Loader())[0])


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(plain)
@settings(max_examples=examples(25), deadline=None)
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
        defaultdict(list, a=[1]),
        Counter("aab"),
        deque([1, 2], maxlen=3),
        {"a": object()}.keys(),
        OrderedDict(a=1).keys(),
        OrderedDict(a=1).items(),
        np.float32(0.1),
        np.int64(3),
        np.bool_(True),
        Color.RED,
        ...,
        list[int],
        int | None,
        dict[str, list[torch.Tensor]],
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


def test_values_of_a_dict_and_arrays_come_back() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    values, odd, same = round_trip(OrderedDict(a=1, b=[2]).values(), {}.values(), array)
    assert list(values) == [1, [2]]
    assert type(values) is type(OrderedDict().values())
    assert list(odd) == []
    assert np.array_equal(same, array)
    assert same.dtype == array.dtype
    with pytest.raises(NotPlain, match="numpy"):
        round_trip(np.array(["text"]))


class Slotted:
    __slots__ = ("empty", "value")

    def __init__(self, value):
        self.value = value


class Below(Slotted):
    __slots__ = ("__dict__", "further")


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: torch.Tensor
    y: int = 2


OPTIONAL = typing.Optional[torch.Tensor]  # noqa: UP045 - of another class than X | None


def test_slots_come_back() -> None:
    below = Below([1])
    below.further, below.free = 2, 3
    back, point, annotated = round_trip(below, Point(torch.ones(2)), OPTIONAL)
    assert (back.value, back.further, back.free) == ([1], 2, 3)
    assert not hasattr(back, "empty")
    assert torch.equal(point.x, torch.ones(2))
    assert point.y == 2
    assert annotated == torch.Tensor | None


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


def test_what_stands_for_a_choice_by_its_identity_is_itself_again() -> None:
    """As the stream of a CPU in torchgpipe, of which code asks ``stream is CPU``."""
    back, other, held = round_trip(ABSENT, Absent(), FULL)
    assert back is ABSENT
    assert type(other) is Absent
    assert other is not ABSENT
    assert held is not FULL  # it may be another one by then
    assert held.value == 3


def test_a_closure_over_a_module_is_remade() -> None:
    layer = torch.nn.Linear(2, 2)
    offset = 0.5
    (again,) = round_trip(lambda x: layer(x) + offset)
    x = torch.ones(1, 2)
    assert torch.equal(again(x), layer(x) + 0.5)


def test_what_a_decorator_makes_is_remade_from_the_module_of_its_code() -> None:
    def halved(x):
        return x / 2

    @functools.wraps(torch.nn.functional.relu)
    def wrapped(x):
        return halved(x)

    (again,) = round_trip(wrapped)
    assert again(torch.ones(())) == 0.5
    with pytest.raises(NotPlain, match="is made by torch"):  # it is kept in the process then
        Encoder(2**20).encode(torch.vmap(halved))


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
        (torch.eye(2).to_mkldnn(), "layout"),
        (torch.empty(2, device="meta"), "without data"),
        (Path("a"), "Path"),
        (lambda x: handle, "closes over"),
    ],
    ids=["builtin", "iterator", "mkldnn", "meta", "path", "closure"],
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


class Packed(torch.nn.Parameter):
    """Numbers and a scale, as quantised weights keep them."""

    def __new__(cls, data, scale):
        made = torch.Tensor._make_subclass(cls, data, False)
        made.scale = scale
        return made


def test_a_tensor_of_a_class_of_its_own_comes_back_with_what_it_holds() -> None:
    packed = Packed(torch.arange(4, dtype=torch.int8), torch.tensor(0.5))
    packed.other = packed
    back, again = round_trip(packed, packed)
    assert type(back) is Packed
    assert back is again is back.other
    assert back.scale == 0.5
    assert back.tolist() == [0, 1, 2, 3]
    assert not back.requires_grad


def test_a_tensor_made_of_tensors_comes_back_where_the_recording_is_trusted() -> None:
    made = TwoTensor(torch.ones(2, 3), torch.zeros(2, 3)).requires_grad_()
    encoder = Encoder(2**20)
    encoded = [encoder.encode(made)]
    (back,), _ = decode_call(encoded, [], encoder.tensors, Loader())
    assert type(back) is TwoTensor
    assert torch.equal(back.a, made.a)
    assert torch.equal(back.b, made.b)
    assert back.requires_grad
    with pytest.raises(RecordingError, match=r"code of the class[\s\S]*--trust"):
        decode_call(encoded, [], encoder.tensors, StrictLoader(package="torch"))


def test_the_limit_of_bytes_is_kept() -> None:
    with pytest.raises(NotPlain, match="MiB"):
        Encoder(100).encode(torch.ones(100))


def test_a_class_that_acts_when_dropped_is_neither_taken_nor_remade() -> None:
    with pytest.raises(NotPlain, match="plain form"):
        Encoder(100).encode(Dangerous())
    node = ("object", 0, __name__, "Dangerous", [])
    with pytest.raises(RecordingError, match="malformed"):
        decode_call([node], [], [], Loader())


class Dangerous:
    def __del__(self) -> None:
        pass


@pytest.mark.parametrize(
    "node", [("system", "ls"), ["list"], ("tensor", 7, True, "cpu", False), ("named", "os", "nope")]
)
def test_malformed_nodes_are_refused(node) -> None:
    with pytest.raises(RecordingError):
        decode_call([node], [], [], Loader())


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_sparse_tensor_is_kept_as_it_is(layout) -> None:
    blocks = {"blocksize": (1, 1)} if layout[0] == "b" else {}
    kind = getattr(torch, f"sparse_{layout}")
    value = torch.tensor([[0, 2.0, 0], [3, 0, 4]]).to_sparse(layout=kind, **blocks)
    (back,) = round_trip(value.requires_grad_())
    assert (back.layout, back.shape, back.requires_grad) == (kind, value.shape, True)
    assert torch.equal(back.detach().to_dense(), value.detach().to_dense())


def test_indices_that_are_no_places_are_refused() -> None:
    value = torch.eye(3).to_sparse_csr()
    encoded = Encoder(2**20).encode_call([value], {})
    encoded["tensors"][1][0] = 7
    with pytest.raises(RecordingError):
        decode_call(**encoded, loader=Loader())
