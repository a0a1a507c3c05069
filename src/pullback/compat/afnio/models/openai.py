"""Clients of OpenAI, and of any server that speaks its chat completions."""

import threading
from typing import Any

from pullback.compat.afnio.models.model import ChatCompletionModel
from pullback.errors import ArgumentError
from pullback.text import lm

__all__ = ["AsyncOpenAI", "OpenAI"]


class _Client(ChatCompletionModel):
    """One connection for each model that is asked for.

    Arguments:
        api_key: ``OPENAI_API_KEY`` if None.
        base_url: another server's; ``OPENAI_BASE_URL`` or OpenAI's if None.
        timeout: seconds for one call.
        max_retries: how many more times to ask where a call fails in passing.
        default_headers: sent with every call.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        default_headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__("openai", {"timeout": timeout, "max_retries": max_retries})
        self._options = {"api_key": api_key, "base_url": base_url, "timeout": timeout,
                         "headers": default_headers}  # fmt: skip
        self._retries = max_retries
        self._models: dict[str, lm.LM] = {}
        self._lock = threading.Lock()

    def _model(self, model: str | None) -> lm.LM:
        if not model:
            raise ArgumentError("No model was named.", mend="Pass model='gpt-4o' to the call.")
        with self._lock:
            if model not in self._models:
                asked: lm.LM = lm.OpenAI(model, **self._options)
                if self._retries:
                    asked = lm.Retry(asked, attempts=self._retries + 1)
                self._models[model] = asked
            return self._models[model]

    @property
    def usage(self) -> lm.Usage:
        """What it has used."""
        used = self.get_usage()
        return lm.Usage(
            used.get("prompt_tokens", 0), used.get("completion_tokens", 0),
            cost=used.get("cost", 0.0),
        )  # fmt: skip

    def _count(self, completion: lm.Completion) -> str:
        usage = completion.usage
        with self._lock:
            self.update_usage({
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.tokens,
                "cost": usage.cost or 0.0,
            })  # fmt: skip
        return completion.text


class OpenAI(_Client):
    """The client that is called."""

    def chat(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        """Answer messages; ``model`` and the rest by OpenAI's names."""
        asked = self._model(kwargs.pop("model", None))
        return self._count(asked.complete(messages, **kwargs))


class AsyncOpenAI(_Client):
    """The client that is awaited."""

    async def achat(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        """Answer messages; ``model`` and the rest by OpenAI's names."""
        asked = self._model(kwargs.pop("model", None))
        return self._count(await asked.acomplete(messages, **kwargs))
