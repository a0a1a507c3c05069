"""Clients of language models."""

from pullback.compat.afnio.models.model import (
    BaseModel,
    ChatCompletionModel,
    EmbeddingModel,
    TextCompletionModel,
)

__all__ = ["BaseModel", "ChatCompletionModel", "EmbeddingModel", "TextCompletionModel"]
