"""`Module`: a pipeline, or a part of one."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pullback.compat.afnio.cognitive.parameter import Parameter
from pullback.errors import ArgumentTypeError
from pullback.tape import Variable
from pullback.text import Module as TextModule

__all__ = ["Module"]


class Module(TextModule):
    """A pipeline, or a part of one: see `pullback.text.Module`.

    Chats, completion configs, functions and models can be registered by name; they are found by
    ``named_chats`` and so on, and are no part of the state, which is plain JSON.
    """

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

    def register_chat(self, name: str, messages: Any) -> None:
        """Keep messages under a name."""
        self._register("chat", name, messages)

    def register_completion_config(self, name: str, args: dict[str, Any] | None) -> None:
        """Keep arguments of calls under a name."""
        self._register("completion_config", name, args)

    def register_function(self, name: str, func: Callable[..., Any] | None) -> None:
        """Keep a function under a name."""
        self._register("function", name, func)

    def register_model(self, name: str, model: Any) -> None:
        """Keep a client under a name."""
        self._register("model", name, model)

    def _register(self, kind: str, name: str, value: Any) -> None:
        setattr(self, name, value)
        self.__dict__.setdefault(f"_{kind}s", set()).add(name)

    def _named(self, kind: str) -> Iterator[tuple[str, Any]]:
        for path, module in self.named_modules():
            for name in sorted(module.__dict__.get(f"_{kind}s", ())):
                yield (f"{path}.{name}" if path else name), getattr(module, name)

    def named_chats(self) -> Iterator[tuple[str, Any]]:
        """The registered messages by path."""
        return self._named("chat")

    def chats(self) -> Iterator[Any]:
        """The registered messages."""
        return (value for _, value in self.named_chats())

    def named_completion_configs(self) -> Iterator[tuple[str, Any]]:
        """The registered arguments of calls by path."""
        return self._named("completion_config")

    def completion_configs(self) -> Iterator[Any]:
        """The registered arguments of calls."""
        return (value for _, value in self.named_completion_configs())

    def named_functions(self) -> Iterator[tuple[str, Any]]:
        """The registered functions by path."""
        return self._named("function")

    def functions(self) -> Iterator[Any]:
        """The registered functions."""
        return (value for _, value in self.named_functions())

    def named_models(self) -> Iterator[tuple[str, Any]]:
        """The registered clients by path."""
        return self._named("model")

    def models(self) -> Iterator[Any]:
        """The registered clients."""
        return (value for _, value in self.named_models())

    def buffers(self) -> Iterator[Variable]:
        """The buffers."""
        return (value for _, value in self.named_buffers())

    def named_children(self) -> Iterator[tuple[str, TextModule]]:
        """The modules directly in it, by name."""
        return ((path, each) for path, each in self.named_modules() if path and "." not in path)

    def empty_grad(self) -> None:
        """Forget the feedback of every parameter."""
        self.zero_grad()

    def load_state_dict(  # type: ignore[bad-override]
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        model_clients: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the data that `state_dict` gave."""
        super().load_state_dict(state_dict, strict)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One step of training; to be written."""
        raise NotImplementedError(f"{type(self).__name__} has no training_step.")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """One step of validation; to be written."""
        raise NotImplementedError(f"{type(self).__name__} has no validation_step.")

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """One step of a test; to be written."""
        raise NotImplementedError(f"{type(self).__name__} has no test_step.")

    def configure_optimizers(self) -> Any:
        """The optimizer; to be written."""
        raise NotImplementedError(f"{type(self).__name__} has no configure_optimizers.")
