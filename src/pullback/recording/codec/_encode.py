"""`Encoder`: arguments of a call as plain data that ``torch.load(weights_only=True)`` reads.

A recording must load without executing anything, so no pickle of live objects is kept. Every
argument becomes a tree of tuples, lists, strings, numbers and tensors, each tuple tagged with
what it stands for; `decode_call` is the way back. What has no such form is
refused with its reason, and the call is then reported as not replayable.

A copy of this file is imported into the program that is recorded.
"""

import collections
import contextlib
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from pullback.internal._sparse import indices_of, is_sparse, values_of
from pullback.internal.torch import (
    STATE_DICT_HOOKS,
    FakeTensor,
    FunctionalTensor,
    disable_torch_function,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
)
from pullback.recording.codec._classes import is_plain_class, is_plain_tensor_class, slots_of
from pullback.recording.locator._locator import Locator

__all__ = [
    "EXPRESSION", "PLAIN", "TENSORS", "Encoder", "NotPlain", "Traced",
]  # fmt: skip

PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
EXPRESSION = "__pullback_expression__"  # source by which a script gets at a tensor or a call
_DICTS = (collections.OrderedDict, collections.defaultdict, collections.Counter)
_VIEWS = tuple(
    type(view) for kind in (dict, collections.OrderedDict)
    for view in (kind().keys(), kind().values(), kind().items())
)  # fmt: skip
TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_ANNOTATIONS = (
    types.UnionType, types.GenericAlias,
    *(type(made) for made in (typing.Optional[int], typing.List[int])),  # noqa: UP006, UP045 - of typing
)  # fmt: skip
# Process groups, where torch has them.
_GROUPS = (torch.distributed.ProcessGroup,) if torch.distributed.is_available() else ()
_DEPTH_LIMIT = 40
_NODE_LIMIT = 20_000


class NotPlain(Exception):
    """An argument has no form as plain data; the message is the reason."""


class Traced(NotPlain):
    """An argument is a tensor without data: the call is traced, not made."""


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """The slots and the attributes of an object."""
    for name, slot in slots_of(type(value)).items():
        with contextlib.suppress(AttributeError):  # never filled
            yield name, slot.__get__(value)
    yield from getattr(value, "__dict__", {}).items()


class Encoder:
    """Collects the tensors of one call and encodes its arguments.

    Arguments:
        limit: the most bytes of tensors that the encoder may copy.

    Attributes:
        tensors: detached copies on the CPU, each tensor once however often it occurs.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.tensors: list[torch.Tensor] = []
        self._met: dict[int, tuple[Any, Any]] = {}  # by id: an object, which lives on, and its node
        self._objects = self._nodes = self._depth = 0

    def encode_call(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as plain data, and the tensors: what `decode_call` takes.

        Raises:
            NotPlain: one has no such form, or they are larger than the limit.
        """
        arguments = self._all(args)
        keywords = [(name, self.encode(value)) for name, value in kwargs.items()]
        return {"arguments": arguments, "keywords": keywords, "tensors": self.tensors}

    def encode(self, value: Any) -> Any:
        """Return ``value`` as plain data.

        Raises:
            NotPlain: it has no such form, or is larger than the limit.
        """
        self._nodes += 1
        if self._depth > _DEPTH_LIMIT or self._nodes > _NODE_LIMIT:
            raise NotPlain("an argument is nested too deeply or holds too many objects")
        kind = type(value)
        if kind in PLAIN:
            return value
        if id(value) in self._met:
            return self._met[id(value)][1]
        self._depth += 1
        try:
            if isinstance(value, torch.Tensor):
                return self._tensor(value)
            if kind.__module__ == "numpy" and hasattr(value, "dtype"):
                return self._numpy(value)
            rules = (rule for types_, rule in _ENCODERS if isinstance(value, types_))
            return next(rules, Encoder._object)(self, value)
        finally:
            self._depth -= 1

    def _number(self, value: Any) -> int:
        """The number by which an object is meant where it occurs again."""
        self._objects += 1
        self._met[id(value)] = value, ("same", self._objects - 1)
        return self._objects - 1

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self.encode(item) for item in values]

    def _tensor(self, value: torch.Tensor) -> Any:
        plain = _unwrap(value)
        if type(plain) not in TENSORS:
            return self._other_tensor(plain) if plain is value else self.encode(plain)
        if is_sparse(plain):
            return self._sparse(plain, bool(value.requires_grad))
        flags = bool(value.requires_grad), str(plain.device), isinstance(value, torch.nn.Parameter)
        node = ("tensor", self._copy(plain), *flags)
        self._met[id(value)] = value, node
        return node

    def _sparse(self, value: torch.Tensor, grad: bool) -> Any:
        parts = self._all([*indices_of(value), values_of(value.detach())])
        node = ("sparse", str(value.layout), list(value.shape), parts, grad)
        self._met[id(value)] = value, node
        return node

    def _other_tensor(self, value: Any) -> Any:
        """A tensor of a class of its own: what it is made of, or its numbers and attributes."""
        kind = type(value)
        reference = _reference(kind)
        number = self._number(value)
        if hasattr(kind, "__tensor_flatten__"):
            names, made_with = value.__tensor_flatten__()
            inner = [(name, self.encode(getattr(value, name))) for name in names]
            shape = [list(value.shape), list(value.stride()), bool(value.requires_grad)]
            return ("flattened", number, *reference, inner, self.encode(made_with), *shape)
        if not is_plain_tensor_class(kind):
            raise _without_form(value, "a tensor")
        with disable_torch_function():
            position = self._copy(value.detach().as_subclass(torch.Tensor))
            how = [bool(value.requires_grad), str(value.device)]
        state = [(name, self.encode(item)) for name, item in vars(value).items()]
        return ("subclass", number, *reference, position, *how, state)

    def _copy(self, plain: torch.Tensor) -> int:
        size = plain.numel() * plain.element_size()
        self.bytes += size
        if self.bytes > self.limit:
            most = f"{self.limit / 2**20:.3g} MiB"
            raise NotPlain(f"its tensors hold more than {most}; raise --max-mebibytes")
        self.tensors.append(plain.detach().clone().cpu())
        return len(self.tensors) - 1

    def _sequence(self, value: list[Any] | tuple[Any, ...]) -> Any:
        kind = type(value)
        if kind is list or kind is tuple:
            return (kind.__name__, self._all(value))
        if hasattr(kind, "_fields"):  # a named tuple, or torch.return_types
            return ("namedtuple", *_reference(kind), self._all(value))
        raise _without_form(value)

    def _dict(self, value: dict[Any, Any]) -> Any:
        kind = type(value)
        if kind not in (dict, *_DICTS):
            raise _without_form(value)
        pairs = [(self.encode(key), self.encode(item)) for key, item in value.items()]
        if isinstance(value, collections.defaultdict):
            return ("defaultdict", pairs, self.encode(value.default_factory))
        return (kind.__name__, pairs)

    def _view(self, value: Any) -> Any:
        kind = type(value).__name__.removeprefix("odict_").removeprefix("dict_")
        mapping = value.mapping.copy()
        if kind == "keys":  # what they lead to is not seen, and need not have a plain form
            mapping = type(mapping).fromkeys(value)
        return ("view", kind, self.encode(mapping))

    def _numpy(self, value: Any) -> Any:
        """An array or a number of numpy, as the tensor that holds the same."""
        numpy = sys.modules["numpy"]
        array = isinstance(value, numpy.ndarray)
        try:
            if array and type(value) is not numpy.ndarray:
                raise TypeError
            stored = torch.as_tensor(numpy.array(value), device="cpu")  # torch 2.7 takes no flag
        except (TypeError, ValueError, RuntimeError):
            raise NotPlain(f"an argument of numpy, {value.dtype}, has no plain form") from None
        return ("array" if array else "number", self._copy(stored))

    def _method(self, value: types.MethodType) -> Any:
        name = value.__func__.__name__
        if getattr(type(value.__self__), name, None) is not value.__func__ and not isinstance(
            value.__self__, type
        ):
            raise NotPlain(f"the method {name} was attached to an object, not to its class")
        return ("method", self.encode(value.__self__), name)

    def _builtin(self, value: types.BuiltinFunctionType) -> Any:
        owner = value.__self__
        if owner is None or isinstance(owner, (type, types.ModuleType)):
            return ("named", *_reference(value))
        return ("method", self.encode(owner), value.__name__)

    def _function(self, value: types.FunctionType) -> Any:
        if Locator.of(value).names(value):
            return ("named", *_reference(value))
        # A lambda or an inner function: its code, with what it closes over. A decorator gives it
        # the module of what it wraps.
        code, module = value.__code__, str(value.__globals__.get("__name__", value.__module__))
        if module.partition(".")[0] == "torch":  # whose code no recording may name
            raise NotPlain(f"the function {value.__qualname__} is made by {module}")
        cells = [
            self._part(f"the function {value.__qualname__} closes over {name}", cell.cell_contents)
            for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True)
        ]
        defaults = self.encode(value.__defaults__)
        keywords = self.encode(value.__kwdefaults__)
        home = _home(Locator.in_module(module))
        place = (home, code.co_qualname, code.co_firstlineno)
        variables = self._script_globals(value, module)
        return ("closure", *place, cells, defaults, keywords, variables)

    def _script_globals(self, value: types.FunctionType, module: str) -> list[tuple[str, Any]]:
        """The variables of a script that a function reads: the script is not run again."""
        if module != "__main__" and not Locator.in_module(module).script:
            return []
        definitions = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
        read = ((name, value.__globals__.get(name, int)) for name in value.__code__.co_names)
        return [(name, self.encode(v)) for name, v in read if not isinstance(v, definitions)]

    def _annotation(self, value: Any) -> Any:
        """``list[int]``, ``int | None`` and the like, by what they are of."""
        origin = typing.get_origin(value)
        items = [None if item is type(None) else item for item in typing.get_args(value)]
        arguments = [self.encode(item) for item in items]
        if origin in (typing.Union, types.UnionType):
            return ("union", arguments)
        if not arguments or not isinstance(origin, type):
            raise NotPlain(f"the annotation {value} has no plain form")
        return ("generic", self.encode(origin), arguments)

    def _generator(self, value: torch.Generator) -> Any:
        self.tensors.append(value.get_state())
        return ("generator", len(self.tensors) - 1, str(value.device))

    def _object(self, value: Any) -> Any:
        kind = type(value)
        if not is_plain_class(kind):
            raise _without_form(value)
        reference = _reference(kind)
        number = self._number(value)
        state = []
        for name, item in _state(value):
            if name in STATE_DICT_HOOKS and isinstance(value, torch.nn.Module):
                state.append((name, ("OrderedDict", [])))
            else:
                state.append((name, self._part(f"{_name(kind)}.{name}", item)))
        held = {} if state else vars(sys.modules.get(kind.__module__, types)).copy()
        return ("object", number, *reference, state, *[n for n in held if held[n] is value][:1])

    def _part(self, what: str, value: Any) -> Any:
        """What a function or an object holds; it is named where that has no plain form."""
        try:
            return self.encode(value)
        except NotPlain as reason:
            raise NotPlain(f"{what}: {reason}") from None


_ENCODERS: tuple[tuple[Any, Callable[[Encoder, Any], Any]], ...] = (
    (torch.Size, lambda self, value: ("size", [int(item) for item in value])),
    (enum.Enum, lambda self, value: ("enum", *_reference(type(value)), value.name)),
    ((list, tuple), Encoder._sequence),
    ((set, frozenset), lambda self, value: (type(value).__name__, self._all(value))),
    (dict, Encoder._dict),
    (collections.deque, lambda self, value: ("deque", self._all(value), value.maxlen)),
    (_VIEWS, Encoder._view),
    ((slice, range), lambda self, v: (type(v).__name__, self._all((v.start, v.stop, v.step)))),
    (torch.device, lambda self, value: ("device", str(value))),
    ((torch.dtype, torch.layout, torch.memory_format), lambda self, v: ("torch", str(v))),
    (torch.Generator, Encoder._generator),
    # A process group, as the ranks in it: it is made anew on ranks.
    (_GROUPS, lambda self, v: ("group", torch.distributed.get_process_group_ranks(v))),
    (types.EllipsisType, lambda self, value: ("ellipsis",)),
    (_ANNOTATIONS, Encoder._annotation),
    (types.ModuleType, lambda self, value: ("module", _home(Locator.in_module(value.__name__)))),
    (
        functools.partial,
        lambda self, v: ("partial", self._all((v.func, tuple(v.args), dict(v.keywords)))),
    ),
    (types.MethodType, Encoder._method),
    (types.BuiltinFunctionType, Encoder._builtin),
    (types.FunctionType, Encoder._function),
    (_NAMED, lambda self, value: ("named", *_reference(value))),
)


def _unwrap(value: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor behind ``value``; one item of it if it is batched by vmap."""
    while is_functorch_wrapped_tensor(value):
        inner = get_unwrapped(value)
        if is_batchedtensor(value):
            inner = inner.select(maybe_get_bdim(value), 0)
        value = inner
    if isinstance(value, (FakeTensor, FunctionalTensor)) or value.is_meta:
        raise Traced("a tensor without data")
    if value.is_quantized or not (value.layout is torch.strided or is_sparse(value)):
        what = f"a tensor of {value.dtype} on {value.device} with layout {value.layout}"
        raise NotPlain(f"{what} has no plain form")
    return value


def _reference(value: Any) -> tuple[str, str]:
    """Return the module, or script, and qualified name under which ``value`` is found again."""
    locator = Locator.of(value)
    if not locator.names(value):
        raise NotPlain(f"{locator.name} cannot be found again by its name")
    return _home(locator), locator.qualname


def _home(locator: Locator) -> str:
    if not locator.home:
        raise NotPlain("what was defined at a prompt has no file to be found in")
    return locator.home


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _without_form(value: Any, what: str = "an argument") -> NotPlain:
    return NotPlain(f"{what} of type {_name(type(value))} has no plain form")
