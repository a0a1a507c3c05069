"""What a rule raises itself, and a refusal that it is the cause of."""

from pullback.errors import UnsupportedError
from pullback.tensor.values._errors import without_frames


def test_a_refusal_whose_cause_led_to_itself_is_held_all_the_same():
    cause, other = ValueError("too steep"), ValueError("why")
    cause.__cause__, other.__cause__ = other, cause
    error = UnsupportedError("It is refused.")
    error.__cause__ = cause
    assert without_frames(error).__cause__ is cause
