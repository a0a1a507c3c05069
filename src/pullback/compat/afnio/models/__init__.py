"""Clients of language models."""

from pullback.compat.afnio.models.model import BaseModel, ChatCompletionModel

__all__ = ["BaseModel", "ChatCompletionModel"]
