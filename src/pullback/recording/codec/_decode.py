"""`decode_call`: live arguments again, from the plain data that `Encoder` wrote.

What the data names, a `Loader` finds or refuses. Objects are remade without calling anything of
their class, and only where that is all there is to them (`is_plain_class`).
"""

import abc
import collections
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from pullback.errors import ArgumentError, RecordingError
from pullback.internal._defaults import device_named
from pullback.internal._sparse import sparse_of
from pullback.internal.torch import make_subclass
from pullback.recording.codec._classes import is_plain_class, is_plain_tensor_class, slots_of
from pullback.recording.codec._encode import EXPRESSION, PLAIN
from pullback.recording.codec._loader import Loader

__all__ = ["Keywords", "decode_call", "describe_fault"]

_MEND = "Record again with this version of pullback and of the program."


class Keywords(dict[str, Any]):
    """The keyword arguments of a call, on which is noted how a script has the whole call again.

    Example:
        >>> getattr(Keywords({}, "load_call('calls.pt', 'm:F', 0)"), EXPRESSION)
        "load_call('calls.pt', 'm:F', 0)"
    """

    def __init__(self, named: Mapping[str, Any], source: str = "") -> None:
        super().__init__(named)
        setattr(self, EXPRESSION, source)


def decode_call(
    arguments: list[Any], keywords: list[tuple[str, Any]], tensors: list[torch.Tensor],
    loader: Loader, where: str = "",
) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The positional and keyword arguments that `Encoder.encode_call` wrote.

    Arguments:
        arguments: encoded values.
        keywords: names and encoded values.
        tensors: the tensors that they refer to; fresh copies are handed out.
        loader: finds what they name, or refuses to.
        where: an expression for the tensors. Each that is handed out has its own noted on it, by
            which a script finds it; what a recording says of a tensor is never run.

    Raises:
        RecordingError: the data is not of the form that `Encoder` writes, or names something
            that is not there any more, or that the loader refuses.
    """
    decoder = _Decoder(tensors, loader, where)
    try:
        args = tuple(decoder.decode(item) for item in arguments)
        return args, {name: decoder.decode(item) for name, item in keywords}
    except RecordingError:
        raise
    except Exception as error:  # data of any other form fails in some way or other
        gone = isinstance(error, (ImportError, AttributeError, ArgumentError))
        how = "names something that is not there" if gone else "is malformed"
        said = describe_fault(error)
        raise RecordingError(f"A recorded call {how}.", given=said, mend=_MEND) from error


def describe_fault(error: BaseException) -> str:
    """An error that data have caused, in words; no value of the data is printed by its own code.

    Example:
        >>> describe_fault(ValueError("too short")), describe_fault(KeyError(3))
        ('ValueError: too short', 'KeyError')
    """
    text = error.args[0] if error.args and type(error.args[0]) is str else ""
    short = "".join(c if c.isprintable() else " " for c in text)[:160]
    return f"{type(error).__name__}: {short}" if short else type(error).__name__


class _Decoder:
    def __init__(self, tensors: list[torch.Tensor], loader: Loader, where: str) -> None:
        self._tensors = tensors
        self._loader = loader
        self._where = where
        self._used: set[int] = set()
        self._live: dict[int, torch.Tensor] = {}
        self._objects: dict[int, Any] = {}

    def decode(self, node: Any) -> Any:
        if type(node) in PLAIN:
            return node
        if type(node) is not tuple or not node or type(node[0]) is not str:
            raise ValueError(f"{type(node).__name__} is not an encoded value")
        rule = _KINDS.get(node[0])
        if rule is None:
            raise ValueError(f"unknown kind {node[0]!r}")
        return rule(self, *node[1:])

    def _many(self, nodes: list[Any]) -> list[Any]:
        return [self.decode(node) for node in nodes]

    def _fresh(self, position: int, device: str = "cpu") -> torch.Tensor:
        """A copy of a stored tensor, which one value is made of and no other."""
        if position in self._used:
            raise ValueError("several values are made of one stored tensor")
        self._used.add(position)
        return self._tensors[position].clone().to(device_named(_text(device)))

    def _tensor(self, position: int, grad: bool, device: str, parameter: bool) -> torch.Tensor:
        if position not in self._live:
            value = self._fresh(position, device)
            if parameter:
                value = torch.nn.Parameter(value, requires_grad=grad)
            else:
                value.requires_grad_(grad)
                if self._where:
                    setattr(value, EXPRESSION, f"{self._where}[{position}]")
            self._live[position] = value
        return self._live[position]

    def _sparse(self, layout: str, shape: list[int], parts: list[Any], grad: bool) -> torch.Tensor:
        """A sparse tensor of its parts, with indices that are places of it."""
        *indices, values = self._many(parts)
        made = sparse_of(indices, values, _integers(shape), self._torch(layout), check=True)
        return made.requires_grad_(bool(grad))

    def _kind(self, module: str, name: str, fits: Callable[[Any], bool]) -> Any:
        """A class that the data names, of the kind that is meant."""
        kind = self._loader.named(_text(module), _text(name), is_class=True)
        if not (isinstance(kind, type) and fits(kind)):
            raise ValueError(f"{module}.{name} cannot be remade without running its code")
        return kind

    def _subclass(self, number: int, module: str, name: str, *content: Any) -> torch.Tensor:
        position, grad, device, state = content
        kind = self._kind(module, name, is_plain_tensor_class)
        value = make_subclass(kind, self._fresh(position, device), bool(grad))
        self._objects[number] = value
        attributes = object.__getattribute__(value, "__dict__")
        for attribute, item in state:
            attributes[_text(attribute)] = self.decode(item)
        return value

    def _flattened(
        self, number: int, module: str, name: str, inner: list[Any], made_with: Any, *shape: Any
    ) -> torch.Tensor:
        size, stride, grad = shape
        if not self._loader.trusts:
            raise RecordingError(
                "A tensor of a class of its own is remade by code of the class.",
                given=f"{_text(module)}:{_text(name)}",
                mend="Check the program itself, or pass --trust if you trust the recording.",
            )
        kind = self._kind(module, name, _derives(torch.Tensor))
        parts = {_text(part): self.decode(item) for part, item in inner}
        value = kind.__tensor_unflatten__(
            parts, self.decode(made_with), torch.Size(_integers(size)), tuple(_integers(stride))
        )
        self._objects[number] = value.requires_grad_() if grad else value
        return self._objects[number]

    def _namedtuple(self, module: str, name: str, items: list[Any]) -> Any:
        kind = self._kind(module, name, _derives(tuple))
        values = self._many(items)
        if module == "torch.return_types":  # made in C, where tuple.__new__ is not enough
            return kind.__new__(kind, values)
        return tuple.__new__(kind, values)

    def _enum(self, module: str, name: str, member: str) -> Any:
        kind = self._kind(module, name, _derives(enum.Enum))
        return vars(kind)["_member_map_"][_text(member)]

    def _torch(self, name: str) -> Any:
        value = vars(torch)[_text(name).removeprefix("torch.")]
        if not isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            raise ValueError(f"{name} is not a dtype, layout or memory format")
        return value

    def _dict(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        return {self._key(key): self.decode(item) for key, item in pairs}

    def _defaultdict(self, pairs: list[tuple[Any, Any]], factory: Any) -> Any:
        made = self.decode(factory)
        if made is not None and made not in _FACTORIES:
            raise ValueError("the factory of a dict is none of the plain types")
        return collections.defaultdict(made, self._dict(pairs))

    def _view(self, kind: str, node: Any) -> Any:
        mapping = self.decode(node)
        if type(mapping) not in (dict, collections.OrderedDict):
            raise ValueError("a view of something that is no dict")
        views = {"keys": mapping.keys, "values": mapping.values, "items": mapping.items}
        return views[kind]()

    def _numpy(self, position: int, array: bool) -> Any:
        value = self._fresh(position).numpy()
        return value if array else value[()]

    def _key(self, node: Any) -> Any:
        """A value whose hash and comparison run no code of a class."""
        value = self.decode(node)
        if not _is_simple_key(value):
            raise ValueError(f"a {type(value).__name__} is no key that can be remade")
        return value

    def _union(self, nodes: list[Any]) -> Any:
        return functools.reduce(operator.or_, map(_annotated, self._many(nodes)))

    def _generic(self, origin: Any, nodes: list[Any]) -> Any:
        return types.GenericAlias(_annotated(self.decode(origin)), tuple(self._many(nodes)))

    def _generator(self, position: int, device: str) -> torch.Generator:
        generator = torch.Generator(device_named(_text(device)))
        if device.partition(":")[0] == generator.device.type:  # to another its state says nothing
            generator.set_state(self._tensors[position])
        return generator

    def _method(self, owner: Any, name: str) -> Any:
        return self._loader.method(self.decode(owner), _text(name))

    def _partial(self, parts: list[Any]) -> Any:
        function, args, keywords = self._many(parts)
        if type(args) is not tuple or type(keywords) is not dict:
            raise ValueError("the arguments of a partial are no tuple and dict")
        return functools.partial(function, *args, **keywords)

    def _closure(self, module: str, qualname: str, line: int, *bound: Any) -> types.FunctionType:
        cells, defaults, keywords, variables = bound
        loaded = self._loader.module(_text(module), is_code=True)
        code = _find_code(loaded, _text(qualname), *_integers([line]))
        closure = tuple(types.CellType(item) for item in self._many(cells))
        if len(closure) != len(code.co_freevars):
            raise ValueError(f"{module}.{qualname} has changed since it was recorded")
        names = vars(loaded)
        if variables:
            names = {**names, **{_text(name): self.decode(item) for name, item in variables}}
        function = types.FunctionType(code, names, code.co_name, self.decode(defaults), closure)
        function.__kwdefaults__ = self.decode(keywords)
        function.__qualname__ = qualname
        return function

    def _object(self, number: int, module: str, name: str, state: list[Any], held: str = "") -> Any:
        kind = self._kind(module, name, is_plain_class)
        known = vars(sys.modules.get(kind.__module__, types)).get(_text(held))
        value = known if type(known) is kind and not state else object.__new__(kind)
        self._objects[number] = value
        slots = slots_of(kind)
        attributes = object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else {}
        for attribute, item in state:
            if _text(attribute) in slots:
                slots[attribute].__set__(value, self.decode(item))
            elif kind.__dictoffset__:
                attributes[attribute] = self.decode(item)
            else:
                raise ValueError(f"{module}.{name} has no attribute {attribute}")
        return value


def _derives(base: type) -> Callable[[Any], bool]:
    return lambda kind: base in kind.__mro__


_FACTORIES = (bool, int, float, complex, str, list, dict, set, tuple)


def _group(ranks: Any) -> Any:
    """A process group of the same ranks, which are the only ones that make it."""
    numbers = _integers(ranks)
    if not (dist.is_available() and dist.is_initialized()):
        raise RecordingError(
            "A process group is there on several ranks alone.", given=f"the ranks {numbers}",
            mend="Record all ranks of the program: pullback check -- torchrun ... train.py",
        )  # fmt: skip
    return dist.new_group(numbers, use_local_synchronization=True)


_KINDS: dict[str, Callable[..., Any]] = {
    "tensor": _Decoder._tensor,
    "sparse": _Decoder._sparse,
    "subclass": _Decoder._subclass,
    "flattened": _Decoder._flattened,
    "list": _Decoder._many,
    "tuple": lambda self, items: tuple(self._many(items)),
    "namedtuple": _Decoder._namedtuple,
    "size": lambda self, items: torch.Size(_integers(items)),
    "set": lambda self, items: set(map(self._key, items)),
    "frozenset": lambda self, items: frozenset(map(self._key, items)),
    "dict": _Decoder._dict,
    "OrderedDict": lambda self, pairs: collections.OrderedDict(self._dict(pairs)),
    "defaultdict": _Decoder._defaultdict,
    "Counter": lambda self, pairs: collections.Counter(self._dict(pairs)),
    "deque": lambda self, items, most: collections.deque(self._many(items), self.decode(most)),
    "view": _Decoder._view,
    "array": lambda self, position: self._numpy(position, True),
    "number": lambda self, position: self._numpy(position, False),
    "slice": lambda self, parts: slice(*self._many(parts)),
    "range": lambda self, parts: range(*_integers(self._many(parts))),
    "union": _Decoder._union,
    "generic": _Decoder._generic,
    "ellipsis": lambda self: ...,
    "device": lambda self, text: device_named(_text(text)),
    "torch": _Decoder._torch,
    "enum": _Decoder._enum,
    "partial": _Decoder._partial,
    "generator": _Decoder._generator,
    "group": lambda self, ranks: _group(ranks),
    "method": _Decoder._method,
    "named": lambda self, module, name: self._loader.named(_text(module), _text(name)),
    "module": lambda self, name: self._loader.module(_text(name)),
    "closure": _Decoder._closure,
    "object": _Decoder._object,
    "same": lambda self, number: self._objects[number],
}


def _text(value: Any) -> str:
    """A name: what else stands in its place is not even printed, which may run its code."""
    if type(value) is not str:
        raise ValueError(f"a {type(value).__name__} in the place of a name")
    return value


def _integers(values: Any) -> list[int]:
    """Integers, not what can be made one by running its ``__index__``."""
    if type(values) is not list or not all(type(value) is int for value in values):
        raise ValueError("something that is no integer stands in the place of one")
    return values


def _annotated(value: Any) -> Any:
    """What stands in an annotation, if neither its ``|`` nor its class is code of a file."""
    kinds = (type, abc.ABCMeta, type(torch.Tensor), types.GenericAlias, types.UnionType)
    if value is not None and type(value) not in kinds:
        raise ValueError(f"a {type(value).__name__} in an annotation")
    return type(None) if value is None else value


def _is_simple_key(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(_is_simple_key(item) for item in value)
    if isinstance(type(value), enum.EnumMeta):
        return type(value).__hash__ is enum.Enum.__hash__
    return type(value) in (*PLAIN, torch.dtype, torch.device, torch.Size, types.FunctionType, type)


@functools.lru_cache(maxsize=64)
def _codes(module: str, file: str) -> list[types.CodeType]:
    """The code of a module, and of all that is defined in it; an edited script is another one."""
    with open(file, "rb") as source:
        found = [compile(source.read(), file, "exec", dont_inherit=True)]
    for code in found:  # which grows
        found += [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return found


def _find_code(module: types.ModuleType, qualname: str, line: int) -> types.CodeType:
    """Find the code of an inner function or lambda in the source of its module."""
    file = getattr(module, "__file__", None)
    if not file:
        raise ValueError(f"{module.__name__} has no source file")
    found = [
        c
        for c in _codes(module.__name__, file)
        if (c.co_qualname, c.co_firstlineno) == (qualname, line)
    ]
    if len({(code.co_code, code.co_consts) for code in found}) != 1:
        what = "has changed since it was recorded" if not found else "is not alone on its line"
        raise ValueError(f"{qualname} (line {line} of {file}) {what}")
    return found[0]
