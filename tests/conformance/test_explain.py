"""How numbers differ is said in words: each kind of fault by its own sentence."""

import pytest
import torch

from pullback.conformance.comparison._explain import Difference, explain

generator = torch.Generator().manual_seed(0)
X = torch.randn(5, 4, dtype=torch.float64, generator=generator) + 0.1
G = torch.randn(5, 4, dtype=torch.float64, generator=generator) + 0.1
BELOW = int((X < 0).sum())
M = torch.rand(4, 4, dtype=torch.float64, generator=generator) + 0.1
S = torch.randn(4, 4, dtype=torch.float64, generator=generator)


def zeroed_tail(x):
    found = x.clone()
    found[3:] = 0
    return found


def doubled(x, *place):
    found = x.clone()
    found[place] *= 2
    return found


SAID = {
    "None": (X, None, "Got is None: backward returned no gradient."),
    "zero": (X, X * 0, "Got is zero everywhere."),
    "sign": (X, -X, "Got is expected with the other sign."),
    "twice": (X, 2 * X, "Got is 2 x expected."),
    "half": (X, X / 2, "Got is expected / 2."),
    "mean for sum": (X, X / 5, "Got is expected / 5, and 5 is the size of dimension 0 of args[0]."),
    "sum for mean": (X, X * 20, "Got is 20 x expected, and 20 is the size of args[0]."),
    "some factor": (X, 1.37 * X, "Got is 1.37 x expected."),
    "transposed": (S, S.mT, "Got is expected transposed: dimensions 0 and 1 are exchanged."),
    "reversed": (X, X.flip(1), "Got is expected reversed along dimension 1."),
    "shifted": (X, X.roll(1, 0), "Got is expected, shifted by one along dimension 0."),
    "conjugate": (torch.complex(X, G), torch.complex(X, -G),
                  "Got is the complex conjugate of expected."),
    "another's": (X, G, "Got is the gradient of args[1]."),
    "missing term": (X, X - G, "The term of the gradient of args[1] is missing."),
    "term twice": (X, X + G, "The term of the gradient of args[1] is counted once too often."),
    "no cotangent": (X * X, X, "Got is expected without the factor cotangent."),
    "tail": (X, zeroed_tail(X),
             "Right but for the last 2 of 5 along dimension 0, where got is zero everywhere."),
    "index": (X, doubled(X, slice(None), 1),
              "Right but for index 1 of 4 along dimension 1, where got is 2 x expected."),
    "rows": (X, X.mean(0, keepdim=True).expand(5, 4),
             "Got is the same along dimension 0: the mean of expected along it."),
    "same": (X, torch.ones(5, 4) * X[0], "Got is the same along dimension 0, expected is not."),
    "multiple": (
        S,
        S + M * torch.arange(1.0, 5)[:, None],
        "Got is off by a multiple of a factor, by another one for each row along dimension 1: "
        "the sum that this term is multiplied by is wrong.",
    ),
    "signs": (X, X.abs(), f"Got has the right size, and the wrong sign at {BELOW} of 20."),
    "offset": (X, X + 0.25, "Got is expected +0.25 at every entry."),
    "NaN": (X, X.log(), f"{BELOW} of 20 entries got are NaN; expected are finite numbers."),
    "shape": (X, X[0], "Got has shape (4,), expected is (5, 4)."),
    "equal": (X, X + 1e-9, ""),
    "unlike": (X, (3 * X).sin() + G * G, ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAID)
def test_the_kind_of_difference_is_said(kind):
    expected, got, said = SAID[kind]
    found = explain(
        Difference(
            expected, got, sizes={"dimension 0 of args[0]": 5, "args[0]": 20},
            others={"the gradient of args[1]": G}, hand={"the cotangent": X, "a factor": M},
        )
    )  # fmt: skip
    assert found == said


@pytest.mark.parametrize("kind", ["sign", "mean for sum", "transposed", "tail", "zero"])
def test_a_part_of_the_entries_is_enough(kind):
    expected, got, said = SAID[kind]
    known = torch.arange(expected.numel()).reshape(expected.shape) % 3 != 1
    hidden = torch.where(known, expected, torch.nan)
    assert explain(Difference(hidden, got, known, {"dimension 0 of args[0]": 5})) == said


def test_what_is_larger_than_any_number_of_times_expected_is_no_factor():
    got = torch.zeros_like(X)
    got[2, 3] = 5e27
    assert " x expected" not in explain(Difference(X * 1e-27, got))


def test_an_index_of_rows_that_is_said_for_each_entry_comes_once():
    rows = torch.tensor([3, 4, 5])[:, None].expand(3, 2)
    expected = torch.randn(6, 2, dtype=torch.float64, generator=generator)
    got = expected.clone()
    got[3:] *= -1
    said = explain(Difference(expected, got, hand={"args[2]": rows}))
    assert "more than once" not in said
    assert "other sign" in said


def test_a_place_that_few_entries_are_known_of_is_not_said_to_be_right():
    """One of ten entries is wrong, wherever it is; of the last column none that is looked at."""
    expected = torch.randn(40, 8, dtype=torch.float64, generator=generator)
    wrong = (torch.arange(320) % 11 == 0).view(40, 8)
    known = torch.arange(320).view(40, 8) % 8 < 7
    known[:, 7] = (torch.arange(40) % 4 == 0) & ~wrong[:, 7]
    got = torch.where(wrong, 2 * expected + 1, expected)
    assert "Right but" not in explain(Difference(expected, got, known))


def test_an_index_that_comes_often_is_named_however_many_there_are():
    index = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    terms = torch.randn(7, 4, dtype=torch.float64, generator=generator)
    expected = torch.zeros(5, 4, dtype=torch.float64).index_add(0, index, terms)
    got = torch.zeros(5, 4, dtype=torch.float64)
    got[index] = terms
    said = explain(Difference(expected, got, hand={"args[1]": index}))
    assert "index 0, 1, 2 of 5 along dimension 0, which args[1] names more than once" in said
    assert explain(Difference(expected, got, hand={"args[1]": index[1:]})) != said
