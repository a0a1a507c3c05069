"""What a kernel answers with: numbers, names, arguments that are written to, other dtypes."""

import math

import numpy
import pytest
import torch
from torch.nn import functional as F

from pullback import verify
from pullback.errors import ArgumentError
from pullback.report import Verdict

GIVEN = (torch.randn(4, 7, generator=torch.Generator().manual_seed(0)),)


def judge(kernel, reference, inputs=GIVEN):
    return verify(kernel, reference, inputs, isolate=False)


def test_inputs_that_a_function_makes_are_the_same_the_next_time() -> None:
    def make():
        return torch.randn(3, 5), torch.from_numpy(numpy.random.rand(3, 5))

    def half_precise(x, y):
        return (x.half() * y.half()).to(torch.promote_types(x.dtype, y.dtype))

    first, second = (judge(half_precise, lambda x, y: x * y, make) for _ in range(2))
    assert first["outputs"].verdict is Verdict.BROKEN
    assert (first["outputs"].got, first.findings) == (second["outputs"].got, second.findings)


@pytest.mark.parametrize("reference", [lambda x: None, lambda x: "done"])
def test_a_reference_that_gives_nothing_to_compare_is_refused(reference) -> None:
    with pytest.raises(ArgumentError, match="returns nothing that could be compared"):
        judge(reference, reference)


@pytest.mark.parametrize(
    ("kernel", "reference"),
    [
        (lambda x: (x.exp(), 77), lambda x: (x.exp(), x.shape[0])),
        (lambda x: 0.0, lambda x: float(x.sum())),
        (lambda x: {"one": x.exp(), "two": x.sin()}, lambda x: {"two": x.exp(), "one": x.sin()}),
        (lambda x: {"other": x.exp()}, lambda x: {"one": x.exp()}),
    ],
    ids=["a count", "a number", "names", "another name"],
)
def test_numbers_and_names_are_a_part_of_the_answer(kernel, reference) -> None:
    assert judge(kernel, reference)["outputs"].verdict is Verdict.BROKEN


def test_a_dictionary_in_another_order_is_the_same() -> None:
    report = judge(lambda x: {"b": x.sin(), "a": x.exp()}, lambda x: {"a": x.exp(), "b": x.sin()})
    assert report.ok, report
    assert report["gradients"].verdict is Verdict.HOLDS


def into(x, out):
    out.copy_(x.exp())


def in_place(x):
    return x.mul_(2).add_(1)


def test_what_the_reference_writes_to_is_a_part_of_the_answer() -> None:
    given = (*GIVEN, torch.zeros(4, 7))
    right = judge(into, into, given)
    assert right["mutation"].verdict is Verdict.HOLDS
    found = judge(lambda x, out: None, into, given)["outputs"]
    assert "args[1] as it is left is wrong" in found.detail
    assert "as it is left" in judge(lambda x: x * 2 + 1, in_place)["outputs"].detail


def test_a_kernel_that_works_in_place_as_its_reference_does_is_not_accused() -> None:
    def kernel(x):
        x.add_(0.5)
        return x.mul_(2)

    report = judge(kernel, in_place)
    assert report.ok, report
    assert report["gradients"].verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("kernel", "reference", "given"),
    [
        (lambda x: x * x.shape[-1] > x.sum(-1, keepdim=True),
         lambda x: x > x.mean(-1, keepdim=True), GIVEN),
        (lambda x: torch.fft.ifft(x.flip(-1).roll(1, -1)) * x.shape[-1], torch.fft.fft,
         (torch.randn(3, 6, dtype=torch.complex64),)),
        (lambda x: x.half(), lambda x: x.half(), GIVEN),
        (lambda x: x.topk(3).values.sum(-1).bfloat16(), lambda x: x.topk(3)[0].sum(-1).bfloat16(),
         GIVEN),
    ],
    ids=["truth values", "complex numbers", "half precision", "bfloat16"],
)  # fmt: skip
def test_outputs_of_another_dtype_than_the_inputs_are_compared(kernel, reference, given) -> None:
    report = judge(kernel, reference, given)
    assert report.ok, report


def to_bytes(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8)


def to_bytes_otherwise(x):
    wide = x if x.dtype == torch.float64 else x.float()
    factor = 127 / wide.abs().amax(-1, keepdim=True)
    return (wide * factor).round().clamp(-127, 127).to(torch.int8)


def test_a_whole_number_that_rounding_decides_may_be_either() -> None:
    given = (torch.randn(32, 200, generator=torch.Generator().manual_seed(1)),)
    report = judge(to_bytes_otherwise, to_bytes, given)
    assert report.ok, report
    wrong = judge(lambda x: to_bytes(x) + 1, to_bytes, given)
    assert wrong["outputs"].verdict is Verdict.BROKEN


def test_at_a_tie_a_position_is_the_first_where_the_reference_has_such_a_rule() -> None:
    def last(x):
        return x.shape[-1] - 1 - x.flip(-1).argmax(-1)

    found = judge(last, lambda x: x.argmax(-1))["values"]
    assert found.detail.startswith("zeros: the output is wrong at entry (0,)")


def test_at_a_tie_any_position_is_right_where_the_reference_has_no_rule() -> None:
    def kernel(x):
        values, places = x.sort(dim=-1, descending=True, stable=True)
        return values[..., :4], places[..., :4]

    report = judge(kernel, lambda x: torch.topk(x, 4), (torch.randn(5, 21),))
    assert report.ok, report


def test_a_whole_number_is_told_to_its_last_digit() -> None:
    given = (torch.tensor([1, 50_000, 3]),)
    found = judge(lambda i: i * 70_001 - (i > 9).long(), lambda i: i * 70_001, given)["outputs"]
    assert (found.expected, found.got) == ("3500050000", "3500049999")


def test_what_is_infinite_as_given_is_not_hidden() -> None:
    given = (torch.tensor([1.0, 0.0, 2.0]),)
    found = judge(lambda x: (x + 1e-37).log(), torch.log, given)["outputs"]
    assert "entry (1,): it hides what is not finite" in found.detail
    assert judge(lambda x: x.log2() * math.log(2), torch.log, given)["outputs"].ok


def half_alone(product):
    def kernel(a, b):
        if a.dtype != torch.bfloat16:
            raise TypeError("bfloat16 alone")
        return product(a, b)

    return kernel


def summed_in_half(a, b):
    y = a.new_zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        y += a[:, k : k + 1] * b[k : k + 1]
    return y


def test_a_long_sum_in_half_precision_is_off_by_an_eighth_at_most() -> None:
    drawn = torch.Generator().manual_seed(0)
    given = tuple(torch.randn(s, generator=drawn).bfloat16() for s in ((3, 256), (256, 3)))
    nothing = half_alone(lambda a, b: a.new_zeros(a.shape[0], b.shape[1]))
    assert judge(nothing, torch.matmul, given)["outputs"].verdict is Verdict.BROKEN
    assert not judge(half_alone(summed_in_half), torch.matmul, given).ok
    right = half_alone(lambda a, b: (a.float() @ b.float()).bfloat16())
    assert judge(right, torch.matmul, given).ok


def dropped(x):
    return F.dropout(x, 0.3, training=True)


def test_what_draws_the_same_random_numbers_is_not_accused() -> None:
    def drops(keep):
        return lambda x: x * torch.empty_like(x).bernoulli_(keep) / keep

    given = (torch.randn(40, 30),)
    report = judge(drops(0.7), dropped, given)
    assert report.ok, report
    assert judge(drops(0.6), dropped, given)["outputs"].verdict is Verdict.BROKEN


class EveryLargest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.amax(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent[..., None] * (x == x.amax(-1, keepdim=True))


def test_gradients_of_ties_add_up_to_what_their_maximum_has() -> None:
    found = judge(EveryLargest, lambda x: x.amax(-1))["values"]
    assert found.detail.startswith("zeros: the gradient of args[0] is wrong")


def test_sparse_outputs_are_compared_entry_by_entry() -> None:
    report = judge(lambda x: (x * 1).to_sparse(), lambda x: x.to_sparse())
    assert report["outputs"].verdict is Verdict.HOLDS
    wrong = judge(lambda x: (x * 1.01).to_sparse(), lambda x: x.to_sparse())
    assert wrong["outputs"].verdict is Verdict.BROKEN


def test_a_whole_number_of_zero_alone_is_the_reference_s() -> None:
    def otherwise(x):
        return (x >= 0).int() - (x < 0).int()

    def right(x):
        return (x > 0).int() - (x < 0).int()

    assert judge(otherwise, lambda x: x.sign().int())["values"].verdict is Verdict.BROKEN
    assert judge(right, lambda x: x.sign().int()).ok
