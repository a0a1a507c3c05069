"""What the SDK and its connections raise, in our words: what happened, and whether it may pass."""

import email.utils
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from pullback.errors import ModelError, ReplyError
from pullback.text.lm._secrets import scrub

__all__ = ["explain", "seconds_to_wait"]

_TRANSIENT = {408, 409, 425, 429}
_DOUBTFUL = {408, 500, 502, 504}  # the model behind may have answered
_FINAL_CODES = {"insufficient_quota", "billing_hard_limit_reached"}  # of 429: waiting does not help
_TOO_LONG = re.compile(r"(exceed|longer|maximum).{0,40}context|context (length|size|window)", re.I)
_MENDS = {
    400: "Mend the request: its options or messages are not what the server takes.",
    401: "Check the key: api_key or OPENAI_API_KEY.",
    403: "The key may not use this model.",
    404: "Check the name of the model and base_url.",
}


def explain(error: Exception, model: str, sdk: Any) -> ModelError:
    """The error to raise instead of one that came out of the SDK.

    Keys are scrubbed; the original is not chained, for its text and request hold them.
    """
    said = scrub(str(error))[:500]
    if isinstance(error, sdk.APIStatusError):
        return _refused(error.status_code, said, str(error.code or ""), error.response.headers)
    connected = not type(error.__cause__).__name__.startswith(("Connect", "Pool"))
    if isinstance(error, sdk.APITimeoutError):
        return ModelError(
            f"The model {model!r} did not answer in time.", given=said,
            mend="Raise timeout=, or wrap it in Retry.", transient=True, may_be_billed=connected,
        )  # fmt: skip
    if isinstance(error, sdk.APIResponseValidationError | ValueError):
        return ReplyError("The server answered with what is no JSON of a completion.", given=said,
                          transient=True, may_be_billed=True)  # fmt: skip
    cause = scrub(f"{type(error.__cause__ or error).__name__}: {error.__cause__ or error}")
    return ModelError(f"The connection to the model {model!r} failed.", given=cause[:500],
                      mend="Check base_url and that the server runs, or wrap it in Retry.",
                      transient=True, may_be_billed=connected)  # fmt: skip


def _refused(status: int, said: str, code: str, headers: Mapping[str, str]) -> ModelError:
    if status == 400 and (code == "context_length_exceeded" or _TOO_LONG.search(said)):
        return ModelError("The prompt is longer than the model's context.", given=said,
                          mend="Shorten the messages.", status=status)  # fmt: skip
    final = code in _FINAL_CODES
    transient = not final and (status in _TRANSIENT or status >= 500)
    mend = "Wrap the model in Retry." if transient else _MENDS.get(status)
    return ModelError(
        f"The server refused the request: HTTP {status}.", given=said, mend=mend,
        transient=transient, retry_after=seconds_to_wait(headers), status=status,
        may_be_billed=status in _DOUBTFUL,
    )  # fmt: skip


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """What ``Retry-After`` asks for, in seconds: a number of them, or a date; else None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
            except (ValueError, TypeError):
                continue
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    return None
