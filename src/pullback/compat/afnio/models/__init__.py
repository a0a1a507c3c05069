"""Clients of language models."""

from pullback.compat.afnio.models import model_registry, openai

__all__ = ["model_registry", "openai"]
