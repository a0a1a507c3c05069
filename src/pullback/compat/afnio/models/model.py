"""A client of one's own is a language model of `pullback.text.lm`: write its ``answer``."""

from pullback.text import lm

__all__ = ["BaseModel", "ChatCompletionModel"]

BaseModel = ChatCompletionModel = lm.LM
