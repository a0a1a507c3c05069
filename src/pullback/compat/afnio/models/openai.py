"""Clients of OpenAI, and of any server that speaks its chat completions."""

from typing import Any

from pullback.compat.afnio.models.model import ChatCompletionModel
from pullback.errors import ArgumentError
from pullback.text import lm

__all__ = ["AsyncOpenAI", "OpenAI"]


class OpenAI(ChatCompletionModel):
    """A client that is called: one connection for each model that is asked for.

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
        self._models: dict[str, lm.LM] = {}

    def _model(self, model: str | None = None, **options: Any) -> tuple[lm.LM, dict[str, Any]]:
        if not model:
            raise ArgumentError("No model was named.", mend="Pass model='gpt-4o' to the call.")
        if model not in self._models:
            asked: lm.LM = lm.OpenAI(model, **self._options)
            attempts = self._config["max_retries"] + 1
            self._models[model] = lm.Retry(asked, attempts=attempts) if attempts > 1 else asked
        return self._models[model], options

    @property
    def usage(self) -> lm.Usage:
        """What it has used."""
        used: Any = {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0} | self._usage
        return lm.Usage(used["prompt_tokens"], used["completion_tokens"], cost=used["cost"])

    def chat(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        """Answer messages; ``model`` and the rest by OpenAI's names."""
        asked, options = self._model(**kwargs)
        return self._count(asked.complete(messages, **options))

    def _count(self, completion: lm.Completion) -> str:
        usage = completion.usage
        self.update_usage({
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.tokens,
            "cost": usage.cost or 0.0,
        })  # fmt: skip
        return completion.text


class AsyncOpenAI(OpenAI):
    """The same, which can be awaited too."""

    async def achat(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        """Answer messages; ``model`` and the rest by OpenAI's names."""
        asked, options = self._model(**kwargs)
        return self._count(await asked.acomplete(messages, **options))
