"""The call of a model, with an ``apply``."""

from pullback.compat.afnio._operations import as_function, chat_completion

__all__ = ["ChatCompletion"]

ChatCompletion = as_function(chat_completion)
