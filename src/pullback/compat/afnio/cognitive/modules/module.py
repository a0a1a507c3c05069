"""`Module`: a pipeline, or a part of one."""

from collections.abc import Iterator, Mapping
from typing import Any

from pullback.compat.afnio.cognitive.parameter import Parameter
from pullback.errors import ArgumentTypeError
from pullback.tape import Variable
from pullback.text import Module as TextModule

__all__ = ["Module", "module_of"]


def _kept(kind: str) -> tuple[Any, Any, Any]:
    """How a module keeps values of a kind by name, and gives them back with and without names."""

    def register(self: Any, name: str, value: Any) -> None:
        setattr(self, name, value)
        self.__dict__.setdefault(f"_{kind}", set()).add(name)

    def named(self: Any) -> Iterator[tuple[str, Any]]:
        for path, module in self.named_modules():
            for name in sorted(module.__dict__.get(f"_{kind}", ())):
                yield (f"{path}.{name}" if path else name), getattr(module, name)

    def values(self: Any) -> Iterator[Any]:
        return (value for _, value in named(self))

    return register, named, values


class Module(TextModule):
    """A pipeline, or a part of one: see `pullback.text.Module`.

    Chats, completion configs, functions and models can be registered by name; they are found by
    ``named_chats`` and so on, and are no part of the state, which is plain JSON.
    """

    register_chat, named_chats, chats = _kept("chats")
    register_completion_config, named_completion_configs, completion_configs = _kept("configs")
    register_function, named_functions, functions = _kept("functions")
    register_model, named_models, models = _kept("models")
    empty_grad = TextModule.zero_grad

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Keep a parameter under a name."""
        if not isinstance(param, Parameter | None):
            raise ArgumentTypeError("A parameter is a Parameter.", given=type(param).__name__)
        setattr(self, name, param)

    def register_module(self, name: str, module: TextModule | None) -> None:
        """Keep a module under a name."""
        if not isinstance(module, TextModule | None):
            raise ArgumentTypeError("A module is a Module.", given=type(module).__name__)
        setattr(self, name, module)

    def register_buffer(  # type: ignore[bad-override]
        self, name: str, variable: Variable | None, persistent: bool = True
    ) -> None:
        """Keep a Variable that no optimizer changes; with ``persistent`` it is saved."""
        if variable is None or not persistent:
            setattr(self, name, variable)
        else:
            super().register_buffer(name, variable)

    def buffers(self) -> Iterator[Variable]:
        """The buffers."""
        return (value for _, value in self.named_buffers())

    def named_children(self) -> Iterator[tuple[str, TextModule]]:
        """The modules directly in it, by name."""
        return ((path, each) for path, each in self.named_modules() if path and "." not in path)

    def load_state_dict(  # type: ignore[bad-override]
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        model_clients: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the data that `state_dict` gave."""
        super().load_state_dict(state_dict, strict)


def module_of(operation: Any) -> type[Module]:
    """An operation as a module."""
    rules = {"__doc__": operation.__doc__, "forward": staticmethod(operation.apply)}
    return type(operation.__name__, (Module,), rules)
