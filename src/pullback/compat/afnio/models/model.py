"""What a client of a language model can do."""

import threading
from typing import Any

__all__ = ["BaseModel", "ChatCompletionModel", "EmbeddingModel", "TextCompletionModel"]


class BaseModel:
    """A client: who provides it, how it is configured, what it has used."""

    def __init__(
        self, provider: str | None = None, config: dict[str, Any] | None = None,
        usage: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._provider, self._config, self._usage = provider, dict(config or {}), dict(usage or {})
        self._lock = threading.Lock()

    def get_provider(self) -> str | None:
        """Who provides it."""
        return self._provider

    def get_config(self) -> dict[str, Any]:
        """How it is configured, without keys."""
        return dict(self._config)

    def get_usage(self) -> dict[str, Any]:
        """What it has used, by name."""
        return dict(self._usage)

    def clear_usage(self) -> None:
        """Count from zero again."""
        self._usage.clear()

    def update_usage(self, usage: dict[str, Any], model_name: str | None = None) -> None:
        """Add what a call has used."""
        with self._lock:
            for name, count in usage.items():
                self._usage[name] = self._usage.get(name, 0) + (count or 0)


class ChatCompletionModel(BaseModel):
    """A client that answers messages: a subclass writes ``chat(messages, **options)`` or ``achat``.

    Both give a text.
    """


class TextCompletionModel(BaseModel):
    """A client that goes on with a text: a subclass writes ``complete(prompt, **options)``."""


class EmbeddingModel(BaseModel):
    """A client that embeds texts: a subclass writes ``embed(input, **options)``."""
