"""The models that are asked: each call of OpenAI's client names one, a language model is one."""

from typing import Any

from pullback.errors import ArgumentError
from pullback.internal._arguments import Natural, checked
from pullback.text import ModelCritic, lm

__all__ = [
    "BackwardCritic",
    "OpenAI",
    "as_lm",
    "get_backward_model_client",
    "set_backward_model_client",
]


@checked
class OpenAI:
    """A client of OpenAI, or of any server that speaks its chat completions.

    Arguments:
        api_key: ``OPENAI_API_KEY`` if None.
        max_retries: how many more times to ask where a call fails in passing.
        options: ``base_url``, ``timeout`` and ``headers``, as of `pullback.text.lm.OpenAI`.
    """

    def __init__(
        self, api_key: str | None = None, *, max_retries: Natural = 2, **options: Any
    ) -> None:
        self._options: dict[str, Any] = {"api_key": api_key, **options}
        self._attempts = max_retries + 1
        self._models: dict[str, lm.LM] = {}

    def model(self, name: str | None) -> lm.LM:
        """The language model of a name, the same one each time.

        Raises:
            ValueError: there is no name.
        """
        if not name:
            raise ArgumentError("No model was named.", mend="Pass model='gpt-4o' to the call.")
        if name not in self._models:
            asked = lm.OpenAI(name, **self._options)
            self._models[name] = lm.Retry(asked, attempts=self._attempts)
        return self._models[name]


@checked
def as_lm(client: OpenAI | lm.LM, completion_args: dict[str, Any]) -> tuple[lm.LM, dict[str, Any]]:
    """A client as a language model of `pullback.text.lm`, and the options of its calls.

    The option ``model`` says which model a client asks; a language model is one already.

    Raises:
        TypeError: it is neither.
    """
    options = dict(completion_args)
    model = options.pop("model", None)
    if isinstance(client, OpenAI):
        return client.model(model), options
    return client, options


_backward: list[tuple[lm.LM, dict[str, Any]]] = []


def set_backward_model_client(
    model_path: Any = "openai/gpt-4o",
    client_args: dict[str, Any] | None = None,
    completion_args: dict[str, Any] | None = None,
) -> None:
    """Say which model writes the feedback of model calls.

    Arguments:
        model_path: ``"openai/<model>"``, or a language model of `pullback.text.lm`.
        client_args: arguments of the client, such as ``base_url``.
        completion_args: arguments of its calls.

    Raises:
        ValueError: the provider is unknown.
    """
    options = dict(completion_args or {})
    if isinstance(model_path, str):
        provider, _, model = model_path.partition("/")
        if provider != "openai" or not model:
            raise ArgumentError(
                "The model that writes feedback is unknown.",
                given=repr(model_path),
                expected="'openai/<model>'",
            )
        model_path, options["model"] = OpenAI(**(client_args or {})), model
    _backward[:] = [as_lm(model_path, options)]


def get_backward_model_client() -> lm.LM:
    """The model that writes feedback.

    Raises:
        ValueError: none was set.
    """
    return _writer()[0]


def _writer() -> tuple[lm.LM, dict[str, Any]]:
    if not _backward:
        raise ArgumentError(
            "No model was set that writes feedback.",
            mend="Call set_backward_model_client('openai/gpt-4o').",
        )
    return _backward[0]


class BackwardCritic:
    """The critic that asks whichever model is set when backward runs."""

    async def review(self, review: Any) -> Any:
        """One answer a text of a call of a model."""
        model, options = _writer()
        return await ModelCritic(model, **options).review(review)
