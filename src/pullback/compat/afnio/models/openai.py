"""Clients of OpenAI, and of any server that speaks its chat completions."""

from pullback.compat.afnio._client import OpenAI

__all__ = ["AsyncOpenAI", "OpenAI"]

AsyncOpenAI = OpenAI  # calls that wait run at once as they are
