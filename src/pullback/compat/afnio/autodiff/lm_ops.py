"""The call of a model, with an ``apply``."""

from pullback.compat.afnio.cognitive.functional import as_function, chat_completion

__all__ = ["ChatCompletion"]

ChatCompletion = as_function(chat_completion)
