"""`Module` and `Parameter`: a pipeline, and the texts in it that may be changed."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked, reading
from pullback.internal._files import write_whole
from pullback.internal._text import shown
from pullback.tape import Variable, no_grad, space_of
from pullback.text._prompts import Template, fields_of
from pullback.text.lm._secrets import writable

__all__ = ["Module", "Parameter", "TemplateParameter"]


class Parameter(Variable):
    """A text (or number) that an optimiser may change.

    Arguments:
        data: the value to start from.
        role: what it is for, in words; critics and optimisers are told.
        requires_grad: whether it collects feedback.

    Example:
        >>> Parameter("Be brief.", role="system prompt")
        Variable('Be brief.', role='system prompt', requires_grad=True)
    """

    __slots__ = ()

    def __init__(self, data: Any = "", role: str = "", requires_grad: bool = True) -> None:
        super().__init__(data, role, requires_grad)


class TemplateParameter(Template, Parameter):
    """A template that an optimiser may change; its new versions keep its fields.

    Example:
        >>> TemplateParameter("Translate {word}.", role="user template").fields
        ('word',)
    """

    __slots__ = ()

    def __init__(self, data: str = "", role: str = "", requires_grad: bool = True) -> None:
        super().__init__(data, role, requires_grad)


@checked
class Module:
    """A pipeline, or a part of one: what it is made of, and how it runs.

    Write `forward`. What is assigned to an attribute is kept: a `Parameter`, another Module, or
    with `register_buffer` a Variable that is saved and never changed. Lists and dicts of Modules
    or Parameters are looked through as well.

    Example:
        >>> class Greet(Module):
        ...     def __init__(self):
        ...         self.greeting = Parameter("Hello", role="greeting")
        ...
        ...     def forward(self, name):
        ...         return self.greeting + ", " + name
        >>> greet = Greet()
        >>> greet(Variable("Ada")).data
        'Hello, Ada'
        >>> greet.state_dict()
        {'greeting': 'Hello'}
    """

    training: bool = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the pipeline; to be written."""
        raise ArgumentTypeError(f"{type(self).__name__} has no forward.",
                                mend="def forward(self, ...): ...")  # fmt: skip

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def register_buffer(self, name: str, value: Variable) -> None:
        """Keep a Variable that is saved with the parameters and that no optimiser changes."""
        setattr(self, name, value)
        self.__dict__.setdefault("_buffers", set()).add(name)

    def named_modules(self) -> Iterator[tuple[str, "Module"]]:
        """This module and those in it, each once, by the path to them."""
        for path, value in _walk(self, "", set()):
            if isinstance(value, Module):
                yield path, value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The parameters in it, each once, by the path to them."""
        for path, value in _walk(self, "", set()):
            if isinstance(value, Parameter):
                yield path, value

    def named_buffers(self) -> Iterator[tuple[str, Variable]]:
        """The buffers in it, by the path to them."""
        for path, module in self.named_modules():
            for name in sorted(module.__dict__.get("_buffers", ())):
                yield _join(path, name), getattr(module, name)

    def modules(self) -> Iterator["Module"]:
        """This module and those in it."""
        return (module for _, module in self.named_modules())

    def parameters(self) -> Iterator[Parameter]:
        """The parameters in it."""
        return (parameter for _, parameter in self.named_parameters())

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let every parameter collect feedback, or none."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Forget the feedback of every parameter."""
        for parameter in self.parameters():
            parameter.grad = None

    def train(self, mode: bool = True) -> Self:
        """Say that it is being trained, or used; a forward may ask ``self.training``."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """The same as ``train(False)``."""
        return self.train(False)

    def state_dict(self) -> dict[str, Any]:
        """The data of the parameters and buffers by their paths: plain JSON."""
        return {path: deepcopy(variable.data) for path, variable in self._named().items()}

    def _named(self) -> dict[str, Variable]:
        """The parameters and buffers by their paths.

        Raises:
            ArgumentError: two of them have one path, so that one would be lost.
        """
        named: dict[str, Variable] = {}
        for path, variable in [*self.named_parameters(), *self.named_buffers()]:
            if named.setdefault(path, variable) is not variable:
                raise ArgumentError(
                    "Two texts of a module have one path.", given=repr(path),
                    mend="Name them apart: a key with a dot, or 1 and '1', make one path.",
                )  # fmt: skip
        return named

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Take the data that `state_dict` gave; all of it, or nothing where something is wrong.

        Raises:
            ArgumentError: a path is missing or unknown (unless ``strict`` is False), or a value is
                of another kind than what it replaces, or no template where it replaces one.
        """
        named = self._named()
        missing, unknown = named.keys() - state.keys(), state.keys() - named.keys()
        if strict and (missing or unknown):
            raise ArgumentError(
                "The state does not belong to this module.",
                given=f"unknown {sorted(unknown)}, missing {sorted(missing)}",
                expected=", ".join(named), mend="Pass strict=False to take what fits.",
            )  # fmt: skip
        chosen = {path: value for path, value in state.items() if path in named}
        for path, value in chosen.items():
            if space_of(value).name != space_of(named[path].data).name:
                raise ArgumentTypeError(
                    f"The state of {path!r} is of another kind.", given=repr(value)[:80],
                    expected=f"as {named[path].data!r:.80}",
                )  # fmt: skip
            if isinstance(named[path], Template):
                fields_of(value)  # refuses what could not be filled
        with no_grad():
            for path, value in chosen.items():
                named[path].data = deepcopy(value)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a JSON file, whole or not at all."""
        write_json(path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read the state from a JSON file.

        Raises:
            ArgumentError: the file holds something else; the module is unchanged.
        """
        with reading("JSON", path):
            state = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        if not isinstance(state, dict):
            raise ArgumentError("The file holds no state.", given=type(state).__name__)
        self.load_state_dict(state)


def json_of(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """The JSON of a value, without any key, that any file can hold."""
    return writable(json.dumps(value, ensure_ascii=False, indent=1, default=default))


def refuse_edited(state: Mapping[str, Any], start: Mapping[str, Any], *known: Any) -> None:
    """Refuse a state that is neither the start of a training nor any that its checkpoint holds."""
    written = json.loads(json_of(state))  # as the checkpoint has it
    if state == start or written in (start, *known):
        return
    edited = [path for path in start if written.get(path) != start[path]]
    raise ArgumentError(
        "The texts are not those that this training began with; its checkpoint has others.",
        given=f"{', '.join(edited)} edited", expected=shown({path: start[path] for path in edited}),
        mend="Train from the edited texts without resume=, or undo the edit.",
    )  # fmt: skip


def write_json(
    path: str | os.PathLike[str], value: Any, default: Callable[[Any], Any] | None = None
) -> None:
    """Write JSON to a file, whole or not at all; its folder is made."""
    text = json_of(value, default)
    try:
        Path(path).parent.mkdir(exist_ok=True, parents=True)
        write_whole(Path(path), text)
    except OSError as error:
        raise ArgumentError("The file cannot be written.", given=str(error)) from None


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Module | Parameter):
        if id(value) in seen:
            return
        seen.add(id(value))
        yield path, value
    if isinstance(value, Module):
        for name, below in vars(value).items():
            yield from _walk(below, _join(path, name), seen)
    elif isinstance(value, list | tuple | deque):
        for number, below in enumerate(value):
            yield from _walk(below, _join(path, str(number)), seen)
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from _walk(below, _join(path, str(key)), seen)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
