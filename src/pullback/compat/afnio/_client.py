"""Model clients as language models of `pullback.text`, and the one that writes feedback."""

import asyncio
from typing import Any

from pullback.compat.afnio.models.model import ChatCompletionModel
from pullback.compat.afnio.models.openai import AsyncOpenAI
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.text import ModelCritic
from pullback.text.lm import LM, Completion, Request

__all__ = [
    "BackwardCritic",
    "ModelClientSingleton",
    "as_lm",
    "get_backward_model_client",
    "set_backward_model_client",
]


class ClientLM(LM):
    """A client as a language model."""

    def __init__(self, client: Any, model: str | None) -> None:
        self.client, self.named = client, model
        self.model = model or type(client).__name__

    async def answer(self, request: Request) -> Completion:
        """Ask the client."""
        messages = [message.to_dict() for message in request.messages]
        options = dict(request.options) | ({"model": self.named} if self.named else {})
        if hasattr(self.client, "achat"):
            text = await self.client.achat(messages=messages, **options)
        else:
            text = await asyncio.to_thread(self.client.chat, messages=messages, **options)
        if not isinstance(text, str):
            raise ArgumentTypeError("A client's chat gave no text.", given=type(text).__name__)
        return Completion(text)


def as_lm(client: Any, completion_args: dict[str, Any]) -> tuple[LM, dict[str, Any]]:
    """A client as a language model of `pullback.text.lm`, and the options of its calls.

    The option ``model`` says which model a client asks; a language model is one already.

    Raises:
        TypeError: it is neither.
    """
    options = dict(completion_args)
    model = options.pop("model", None)
    if isinstance(client, LM):
        return client, options
    if isinstance(client, ModelClientSingleton):
        return as_lm(client.client, {**client.completion_args, **completion_args})
    if isinstance(client, ChatCompletionModel):
        return ClientLM(client, model), options
    raise ArgumentTypeError(
        "A model client is expected.", given=type(client).__name__,
        expected="a ChatCompletionModel such as models.openai.OpenAI, or an LM of pullback.text.lm",
    )  # fmt: skip


class ModelClientSingleton:
    """The client that writes feedback, with the arguments of its calls."""

    def __init__(self, client: Any, completion_args: dict[str, Any]) -> None:
        self.client, self.completion_args = client, completion_args
        as_lm(self, {})  # refuses what is none

    def chat(self, messages: list[dict[str, Any]], **override_kwargs: Any) -> str:
        """Ask it."""
        lm, options = as_lm(self, override_kwargs)
        return lm.complete(messages, **options).text

    def __getattr__(self, name: str) -> Any:
        """What else a client can do: ``get_provider``, ``get_usage``, ``clear_usage``, ..."""
        return getattr(self.__dict__["client"], name)


_backward: list[ModelClientSingleton] = []


def set_backward_model_client(
    model_path: Any = "openai/gpt-4o",
    client_args: dict[str, Any] | None = None,
    completion_args: dict[str, Any] | None = None,
) -> None:
    """Say which model writes the feedback of model calls.

    Arguments:
        model_path: ``"openai/<model>"``, a client, or a language model of `pullback.text.lm`.
        client_args: arguments of the client, such as ``base_url``.
        completion_args: arguments of its calls.

    Raises:
        ValueError: the provider is unknown.
    """
    options = dict(completion_args or {})
    if isinstance(model_path, str):
        provider, _, model = model_path.partition("/")
        if provider != "openai" or not model:
            raise ArgumentError("The model that writes feedback is unknown.",
                                given=repr(model_path), expected="'openai/<model>'")  # fmt: skip
        model_path, options = AsyncOpenAI(**(client_args or {})), {"model": model, **options}
    _backward[:] = [ModelClientSingleton(model_path, options)]


def get_backward_model_client() -> ModelClientSingleton:
    """The client that writes feedback.

    Raises:
        ValueError: none was set.
    """
    if not _backward:
        raise ArgumentError("No model was set that writes feedback.",
                            mend="Call set_backward_model_client('openai/gpt-4o').")  # fmt: skip
    return _backward[0]


class BackwardCritic:
    """The critic that asks whichever client is set when backward runs."""

    async def review(self, review: Any) -> Any:
        """One answer a text of a call of a model."""
        lm, options = as_lm(get_backward_model_client(), {})
        return await ModelCritic(lm, **options).review(review)
