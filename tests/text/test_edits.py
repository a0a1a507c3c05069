"""Edits are exact: what is said to change changes, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback.errors import ArgumentError, UnsupportedError
from pullback.tape import Variable, jvp
from pullback.text import apply_edit, concat, edit_between, exact_match, map_python, use_editor
from pullback.text import format as fill_in
from pullback.text.lm import Scripted

TEXTS = st.text(alphabet=st.sampled_from('ab c"\\\n\u2028\x85é{}'), max_size=40) | st.text()


@settings(max_examples=examples(100), deadline=None)
@given(TEXTS, TEXTS)
def test_the_edit_between_two_texts_makes_one_of_the_other(before, after):
    edit = edit_between(before, after)
    assert apply_edit(before, edit) == after
    assert (edit == "") == (before == after)


@settings(max_examples=examples(100), deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_an_edit_is_carried_out_exactly_or_refused(before, after, other):
    edit = edit_between(before, after)
    try:
        changed = apply_edit(other, edit)
    except ArgumentError:
        return
    if edit:
        assert len(changed) - len(other) == len(after) - len(before)


@pytest.mark.parametrize("edit", ["make it longer", 'at x insert "y"', 'at 1 insert "y" and more'])
def test_free_words_are_refused_by_name(edit):
    with pytest.raises(UnsupportedError, match="free words"):
        apply_edit("text", edit)


def test_overlapping_changes_are_refused():
    with pytest.raises(ArgumentError, match="does not fit"):
        apply_edit("abcd", 'at 0 delete "abc"\nat 1 delete "b"')
    with pytest.raises(ArgumentError, match="does not fit"):
        apply_edit("ab", 'at 9 insert "c"')


@settings(max_examples=examples(100), deadline=None)
@given(TEXTS, TEXTS)
def test_forward_mode_is_the_difference_of_two_runs(before, after):
    def pipeline(x):
        return map_python(str.upper, fill_in("<{x}>", x=concat(x, "-", x)), purpose="upper")

    _, change = jvp(pipeline, (Variable(before),), (Variable(edit_between(before, after)),))
    once, twice = (pipeline(Variable(each)).data for each in (before, after))
    assert apply_edit(once, change.data) == twice


@settings(max_examples=examples(50), deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_the_edit_of_a_sum_is_the_difference_of_two_sums(before, after, other):
    for add in (lambda x: x + other, lambda x: other + x, lambda x: x + "-" + x):
        edit = Variable(edit_between(before, after))
        out, change = jvp(add, (Variable(before),), (edit,))
        assert apply_edit(out.data, change.data) == add(Variable(after)).data


def test_the_tangent_of_a_sum_of_lists_is_the_sum_of_tangents():
    out, change = jvp(
        lambda x: x + [5.0] + x, (Variable([1.0, 2.0]),), (Variable([10.0, 20.0]),)  # noqa: RUF005  # the tape's own +
    )  # fmt: skip
    assert (out.data, change.data) == ([1.0, 2.0, 5.0, 1.0, 2.0], [10.0, 20.0, 0.0, 10.0, 20.0])


def test_an_edit_moves_a_score():
    score, change = jvp(
        lambda x: exact_match(x, "red").score,
        (Variable("green"),),
        (Variable(edit_between("green", "red")),),
    )
    assert (score.data, change.data) == (0.0, 1.0)


def test_an_editor_carries_out_free_words():
    lm = Scripted({"louder": "<EDITED>HELLO</EDITED>"})
    with use_editor(lm):
        _, change = jvp(lambda x: concat(x, "!"), (Variable("hello"),), (Variable("louder"),))
    assert apply_edit("hello!", change.data) == "HELLO!"
    with pytest.raises(UnsupportedError, match="free words"):
        jvp(lambda x: concat(x, "!"), (Variable("hello"),), (Variable("louder"),))
