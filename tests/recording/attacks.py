"""Recordings altered to make their reader run something: `python -m tests.recording.attacks`.

A process of its own sets an audit hook, reads one altered recording after another, and reports
what was refused, what was loaded, and every sign of an execution: an event of the interpreter
(a process, a file written, a module imported), a trap sprung in a module of ours, or a callable
among the loaded values that no recording may name.
"""

import argparse
import contextlib
import enum
import functools
import importlib
import io
import json
import os
import random
import sys
import tarfile
import types
import warnings
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pullback.errors import RecordingError
from pullback.recording import Locator, Recording, load_script
from pullback.recording.codec import Encoder

__all__ = ["attack", "prepare"]

PACKAGE = """
import enum, os, sys, typing
from os import system
import torch

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *rest): return 2 * x
    @staticmethod
    def backward(ctx, g): return (2 * g,)

class Outer:
    class Inner(Scale): pass

class Config:
    def __init__(self): self.factor = 2
    def act(self): sys.canary.append("Config.act")

class Slots:
    __slots__ = ("factor", "rest")
    def __init__(self, factor): self.factor = factor

class Color(enum.Enum):
    RED = 1
    @classmethod
    def _missing_(cls, value): sys.canary.append("Color._missing_")

class Point(typing.NamedTuple):
    x: int
    y: int

class Meta(type):
    def __getattr__(cls, name): sys.canary.append("Meta.__getattr__")
    def __instancecheck__(cls, value): sys.canary.append("Meta.__instancecheck__"); return True
    def __subclasscheck__(cls, value): sys.canary.append("Meta.__subclasscheck__"); return True
    def __hash__(cls): sys.canary.append("Meta.__hash__"); return 1

class Trapped(metaclass=Meta):
    pass

class Trap(object):
    def __new__(cls, *args): sys.canary.append("Trap.__new__"); return object.__new__(cls)
    def __init__(self, *args): sys.canary.append("Trap.__init__")
    def __call__(self, *args): sys.canary.append("Trap.__call__")
    def __reduce__(self): sys.canary.append("Trap.__reduce__")

class State(object):
    def __hash__(self): sys.canary.append("State.__hash__"); return 1
    def __eq__(self, other): sys.canary.append("State.__eq__"); return True
    def __getattr__(self, name): sys.canary.append("State.__getattr__")
    def __setattr__(self, name, value): sys.canary.append("State.__setattr__")
    def __len__(self): sys.canary.append("State.__len__"); return 0
    def __iter__(self): sys.canary.append("State.__iter__"); return iter(())
    def __index__(self): sys.canary.append("State.__index__"); return 1
    def __bool__(self): sys.canary.append("State.__bool__"); return True
    def __repr__(self): sys.canary.append("State.__repr__"); return "x"
    def __str__(self): sys.canary.append("State.__str__"); return "x"
    def __format__(self, how): sys.canary.append("State.__format__"); return "x"
    def __dir__(self): sys.canary.append("State.__dir__"); return []
    def keys(self): sys.canary.append("State.keys"); return []
    def __getitem__(self, key): sys.canary.append("State.__getitem__"); return 1
    def __call__(self, *args): sys.canary.append("State.__call__")
    def __getattribute__(self, name):
        if name != "__dict__": sys.canary.append("State.__getattribute__ " + name)
        return object.__getattribute__(self, name)
    @property
    def value(self): sys.canary.append("State.value")

def danger(*args, **kwargs): sys.canary.append("danger")
def __getattr__(name): sys.canary.append("__getattr__"); raise AttributeError(name)
"""
SCRIPT = """
import os, sys
from subprocess import run
import torch
import helper_of_train

class Mine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *rest): return x * helper_of_train.ONE
    @staticmethod
    def backward(ctx, g): return (g,)

class Knob(object):
    def turn(self): sys.canary.append("Knob.turn")

def make(offset):
    return lambda value: value + offset

def own(*args): sys.canary.append("own")

sys.canary.append("the script was run")
"""
EVIL = """
import sys, torch
sys.canary.append("evil: " + __name__)
class Evil(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x
    @staticmethod
    def backward(ctx, g): return g
class Scale(Evil): pass
def danger(*args): pass
"""


def prepare(folder: Path) -> None:
    """Write the files of the attack: a package, a script that the user names, and evil ones."""
    files = {
        "site/honest_package/__init__.py": PACKAGE,
        "site/canary_import.py": "import sys\nsys.canary.append('canary_import')\nX = print\n",
        "work/train.py": SCRIPT,
        "work/helper_of_train.py": "ONE = 1.0\ndef assist(x): return x\n",
        "evil/evil_module.py": EVIL,
        "evil/honest_package.py": EVIL,
        "evil/train.py": EVIL,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# The recordings that are altered -----------------------------------------------------------------


def honest(folder: Path) -> list[dict[str, Any]]:
    """Recordings as `Recording.save` writes them, with every kind of argument."""
    package = importlib.import_module("honest_package")
    script = load_script(str(folder / "work" / "train.py"), None)
    config = package.Config()
    linear = torch.nn.Linear(2, 2)
    groups = [
        (
            package.Scale,
            [torch.ones(2, requires_grad=True), 2.0, "text", None, [1, (2, {3: b"4"})]],
        ),
        (package.Scale, [torch.ones(1), package.Color.RED, package.Point(1, 2), config, {1, 2}]),
        (package.Scale, [torch.ones(1), torch.sin, torch.Tensor.add, torch.nn.functional.relu]),
        (package.Scale, [torch.ones(1), torch.float32, torch.device("cpu"), torch.Size([2])]),
        (package.Outer.Inner, [torch.ones(1), linear, slice(1, 2), range(3), torch.strided]),
        (script.Mine, [torch.ones(1), script.make(torch.ones(1)), script.own, script.Knob().turn]),
        (script.Mine, [torch.ones(1), functools.partial(script.own, 1), torch.ones(2).add, float]),
        (
            package.Scale,
            [torch.ones(1), package.Slots(2), ..., OrderedDict(a=1).keys(), deque([1])],
        ),
        (package.Scale, [torch.ones(1), defaultdict(list), Counter("a"), int | None]),
        (package.Scale, [torch.ones(1), np.float32(1), np.ones(2)]),
        (script.Mine, [torch.Generator().manual_seed(1), linear.forward, frozenset("ab"), int]),
    ]
    found = []
    for function, arguments in groups:
        encoder = Encoder(2**20)
        nodes = [encoder.encode(value) for value in arguments]
        call = {"arguments": nodes[:-1], "keywords": [("last", nodes[-1])]}
        item = {
            "locator": Locator.of(function).to_data(), "paths": [str(folder / "evil")],
            "script": "", "applied": 1, "reasons": {},
            "calls": [call | {"tensors": encoder.tensors}],
        }  # fmt: skip
        found.append(
            {"format": "pullback recording", "version": 2, "program": ["a"], "functions": [item]}
        )
    return found


# Alterations ---------------------------------------------------------------------------------


class Alterer:
    """Alters a recording at random, towards what an attacker would write."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.random = random.Random(seed)
        self.names = list(_hostile_names(folder))
        self.words = [
            *sorted({word for pair in self.names for word in pair}), "__class__", "__globals__",
            "forward", "__init__", "__reduce_ex__", "turn", "act", "value", "__dict__", "closure",
            "named", "tensor", "cuda:0", "meta", "_ops", "mro", "Mine",
        ]  # fmt: skip

    def alter(self, recording: dict[str, Any]) -> bytes:
        """The bytes of a file."""
        data = _opened(recording)
        ways = [self._locator, self._node, self._node, self._node, self._word, self._shape,
                self._tensor, self._head]  # fmt: skip
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            with contextlib.suppress(AttributeError, TypeError, LookupError):
                self.random.choice(ways)(data)  # the one before may have left no such place
        buffer = io.BytesIO()
        try:
            torch.save(_closed(data), buffer)
        except Exception:  # an alteration that has no form on disk
            return b""
        content = buffer.getvalue()
        if self.random.random() < 0.15:
            content = self._bytes(content)
        return content

    # Where it is -----------------------------------------------------------------------------

    def _locator(self, data: dict[str, Any]) -> None:
        item = self.random.choice(data["functions"])
        module, qualname = self.random.choice(self.names)
        locator = item["locator"]
        if self.random.random() < 0.7:
            locator["module"] = self.random.choice((module, locator["module"], "__main__"))
            locator["qualname"] = self.random.choice((qualname, locator["qualname"]))
            locator["file"] = self.random.choice((locator["file"], module, *self.words))
            locator["completed"] = self.random.random() < 0.2
        else:
            locator[self.random.choice((*locator, "extra"))] = self._value()

    def _head(self, data: dict[str, Any]) -> None:
        item = self.random.choice(data["functions"])
        where = self.random.choice((data, item, *item["calls"]))
        where[self.random.choice((*where, "expression", "script"))] = self._value()

    # What is called with ---------------------------------------------------------------------

    def _node(self, data: dict[str, Any]) -> None:
        places = list(_places(data["functions"]))
        holder, key = self.random.choice(places)
        holder[key] = self._hostile(self.random.choice((0, 1, 2)), holder[key])

    def _hostile(self, depth: int, old: Any) -> Any:
        """An encoded value that names what must not be loaded, perhaps inside honest ones."""
        module, qualname = self.random.choice(self.names)
        state = ("object", 7, "honest_package", "State", [])
        inner = self.random.choice((old, state)) if depth == 0 else self._hostile(depth - 1, old)
        named = ("named", module, qualname)
        word = self.random.choice(self.words)
        return self.random.choice(
            [
                named, named, ("module", module), ("method", inner, word), ("method", named, word),
                ("partial", [named, ("tuple", [inner]), ("dict", [])]),
                ("partial", [inner, ("list", [inner]), ("dict", [(word, inner)])]), state,
                ("partial", [("named", "torch", "sin"), inner, inner]), ("method", state, "act"),
                ("method", state, word), ("partial", [state, ("tuple", []), ("dict", [])]),
                ("object", 0, module, qualname, [(word, inner), ("same", ("same", 0))]),
                ("object", self.random.randrange(3), "torch.nn.modules.linear", "Linear",
                 [(word, inner), ("_forward_hooks", ("dict", [(1, named)]))]),
                ("enum", module, qualname, word), ("namedtuple", module, qualname, [inner]),
                ("closure", module, qualname, self.random.randrange(30), [inner], None, None, []),
                ("closure", module, "make.<locals>.<lambda>", 18, [named], None, None,
                 [("torch", named), (word, inner)]),
                ("closure", module, "make.<locals>.<lambda>", 18, [inner], None, None, [], word),
                ("subclass", 0, module, qualname, 0, True, "cpu", [(word, inner)]),
                ("flattened", 0, module, qualname, [(word, inner)], inner, [2], [1], True),
                ("set", [inner, ("object", 0, "honest_package", "State", [])]),
                ("dict", [(("object", 0, "honest_package", "State", []), 1)] * 2),
                ("dict", [(named, inner), (inner, named)]), ("torch", f"torch.{word}"),
                ("device", word), ("list", [inner, named]), ("tuple", [named]), (word, inner),
                ("tensor", self._value(), inner, word, named), ("generator", 0, word),
                ("same", self._value()), ("size", [inner]), ("slice", [inner, named, None]),
                ("range", [inner, named, None]), ("frozenset", [named]), self._value(),
            ]
        )  # fmt: skip

    def _word(self, data: dict[str, Any]) -> None:
        places = [pair for pair in _places(data["functions"]) if isinstance(pair[0][pair[1]], str)]
        if places:
            holder, key = self.random.choice(places)
            holder[key] = self.random.choice(self.words)

    def _shape(self, data: dict[str, Any]) -> None:
        holder, key = self.random.choice(list(_places(data["functions"])))
        value = holder[key]
        if isinstance(value, (list, tuple)) and value:
            items = list(value)
            items.insert(self.random.randrange(len(items)), self.random.choice(items))
            if self.random.random() < 0.5:
                del items[self.random.randrange(len(items)) :]
            self.random.shuffle(items)
            value = type(value)(items)
        else:
            value = self._value()
        holder[key] = value

    def _tensor(self, data: dict[str, Any]) -> None:
        tensors = data["functions"][0]["calls"][0].get("tensors")
        if isinstance(tensors, list):
            tensors[:] = [
                self.random.choice(
                    (
                        torch.empty(1).expand(2**40), torch.empty(2, device="meta"), [1], None,
                        torch.zeros(3, dtype=torch.uint8), torch.nn.Parameter(torch.ones(1)),
                        torch.ones(2).to_sparse(), torch.empty(0), "text",
                    )
                )
                for _ in range(self.random.randrange(3))
            ]  # fmt: skip

    def _value(self) -> Any:
        return self.random.choice(
            (None, True, -1, 0, 2**70, 1e308, float("nan"), "", "os", b"\0", [], (), {}, [[]],
             ("named", "os", "system"), torch.ones(1), 2**31, "x" * 5000, {"os": "system"},
             functools.reduce(lambda inner, _: [inner], range(400), 1))
        )  # fmt: skip

    # The file itself -------------------------------------------------------------------------

    def _bytes(self, content: bytes) -> bytes:
        way = self.random.randrange(6)
        if way == 0:
            return content[: self.random.randrange(len(content))]
        if way == 1:
            changed = bytearray(content)
            for _ in range(self.random.randrange(1, 30)):
                changed[self.random.randrange(len(changed))] = self.random.randrange(256)
            return bytes(changed)
        if way == 2:
            return b"cos\nsystem\n(S'touch pwned'\ntR."
        if way == 3:
            return _with_pickle(content, b"cposix\nsystem\n(S'touch pwned'\ntR.")
        if way == 4:
            return _with_pickle(content, b"ctorch\nload\n(S'evil'\ntR.")
        return _tar(b"cos\nsystem\n(S'touch pwned'\ntR.")


def _hostile_names(folder: Path) -> Iterator[tuple[str, str]]:
    yield from (
        ("os", "system"), ("posix", "system"), ("builtins", "eval"), ("builtins", "exec"),
        ("builtins", "__import__"), ("builtins", "open"), ("builtins", "getattr"),
        ("subprocess", "run"), ("subprocess", "Popen"), ("cProfile", "run"), ("pickle", "loads"),
        ("runpy", "run_path"), ("torch", "load"), ("torch.hub", "load"), ("torch", "compile"),
        ("torch.utils.cpp_extension", "load_inline"), ("torch.serialization", "load"),
        ("torch.ops", "load_library"), ("torch._ops", "_Ops.load_library"), ("webbrowser", "open"),
        ("antigravity", "fly"), ("this", "s"), ("importlib", "import_module"),
        ("functools", "reduce"), ("operator", "methodcaller"), ("code", "interact"),
        ("ctypes", "CDLL"), ("types", "FunctionType"), ("shutil", "rmtree"), ("socket", "socket"),
        ("test.support", "x"), ("idlelib.idle", "x"), ("pip", "main"), ("setuptools", "setup"),
        ("honest_package", "system"), ("honest_package", "os.system"),
        ("honest_package", "danger"),
        ("honest_package", "Trap"), ("honest_package", "Trapped.anything"),
        ("honest_package", "State"), ("honest_package", "missing"),
        ("honest_package", "Config.act"),
        ("honest_package", "Config"),
        ("honest_package", "sys.canary.append"), ("honest_package", "Scale.forward"),
        ("canary_import", "X"), ("train", "Mine"), ("train", "own"),
        ("helper_of_train", "assist"), ("evil_module", "Evil"), ("__main__", "main"),
        ("torch.utils.checkpoint", "CheckpointFunction"), ("torch.autograd.function", "Function"),
        ("torch.autograd.function", "_SingleLevelFunction"), ("torch.nn", "Linear"),
        ("torch.nn.modules.module", "Module.register_forward_hook"), ("torch", "sin"),
        ("torch.jit", "load"), ("torch.package", "PackageImporter"), ("torch", "Tensor.apply_"),
        ("torch.utils.data", "DataLoader"), ("torch.multiprocessing", "spawn"), ("", ""),
        ("..", "x"), ("a b", "c"), ("honest_package.", "Scale"), (".honest_package", "Scale"),
        ("torch", "os.system"),
        ("torch", "sys.modules"), ("collections", "namedtuple"), ("enum", "Enum"), ("math", "sqrt"),
    )  # fmt: skip
    for file in ("evil/train.py", "evil/evil_module.py", "evil", "work/train.py", "site"):
        for name in ("Evil", "os.system", "run", "own", "Mine", "sys.canary.append", "Knob.turn"):
            yield str(folder / file), name


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (list or dict, key) inside nested containers whose tuples are opened."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, (list, dict)):
            yield from _places(item)


class _Opened(list):
    """A tuple that can be altered."""


def _opened(value: Any) -> Any:
    """The same value with new containers, tuples opened."""
    if isinstance(value, (list, tuple)):
        return (_Opened if isinstance(value, tuple) else list)(_opened(item) for item in value)
    if isinstance(value, dict):
        return {key: _opened(item) for key, item in value.items()}
    return value


def _closed(value: Any) -> Any:
    if isinstance(value, _Opened):
        return tuple(_closed(item) for item in value)
    if type(value) in (tuple, list):
        return type(value)(_closed(item) for item in value)
    if type(value) is dict:
        return {key: _closed(item) for key, item in value.items()}
    return value


def _with_pickle(content: bytes, payload: bytes) -> bytes:
    """The same archive with another pickle inside."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, payload if name.endswith("data.pkl") else old.read(name))
    return buffer.getvalue()


def _tar(payload: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("storages", "tensors", "pickle", "../escaped"):
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            archive.addfile(info, io.BytesIO(payload))
    return buffer.getvalue()


# The watch -----------------------------------------------------------------------------------

_EXECUTIONS = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
    "subprocess.Popen", "socket.", "ctypes.", "os.remove", "os.rename", "os.mkdir", "os.rmdir",
    "os.chmod", "os.link", "os.symlink", "os.truncate", "os.putenv", "os.unsetenv", "os.startfile",
    "shutil.", "webbrowser.", "urllib.Request", "code.__new__", "pickle.find_class",
    "marshal.load", "cpython.run", "sys._getframe", "tempfile.mk", "import", "exec",
)  # fmt: skip


class Watch:
    """Notes what the interpreter does while it is on."""

    def __init__(self, shims: Callable[[str], bool]) -> None:
        self.on = False
        self.seen: list[str] = []
        self._may_import = shims
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            mode, flags = args[1], args[2]
            writing = isinstance(mode, str) and any(letter in mode for letter in "wax+")
            if writing or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)):
                self.seen.append(f"open {args[0]!r} {mode}")
            return
        if event == "sys._getframe" or not event.startswith(_EXECUTIONS):
            return
        if event == "import" and (args[0] in sys.modules or self._may_import(args[0])):
            return
        if event == "exec" and _file_of(args[0]) is not None:
            return  # the code of a module: its import was judged above
        self.seen.append(f"{event} {args!r:.150}")


def _file_of(code: Any) -> str | None:
    name = getattr(code, "co_filename", "<")
    return None if name.startswith("<") and not name.startswith("<frozen") else name


def may_be_named(value: Any, folder: Path) -> bool:
    """Whether a recording may hand this callable to a Function."""
    kind, work = type(value), str(folder / "work")
    if any(value is plain for plain in (int, float, complex, bool, str, bytes, list, tuple, dict)):
        return True
    if issubclass(kind, type):
        home = getattr(sys.modules.get(value.__module__), "__file__", "") or ""
        return value.__module__.startswith("torch.nn.") or home.startswith(work)
    if kind is types.MethodType:
        value, kind = value.__func__, types.FunctionType
    if kind is types.FunctionType:
        nn = os.path.join(os.path.dirname(torch.__file__), "nn")
        return value.__code__.co_filename.startswith((work, nn)) or id(value) in _pure()
    return issubclass(kind, torch.nn.Module) or _tensor_functions(value)


@functools.cache
def _pure() -> set[int]:
    found = torch.overrides.get_overridable_functions()
    return {id(item) for items in found.values() for item in items}


def _tensor_functions(value: Any) -> bool:
    if isinstance(getattr(value, "__self__", None), torch.Tensor):
        value = getattr(torch.Tensor, value.__name__)
    return id(value) in _pure()


def callables(value: Any, depth: int = 6) -> Iterator[Any]:
    """Every callable inside a loaded value, looked at without running any of its code."""
    kind = type(value)
    if depth == 0 or issubclass(kind, (torch.Tensor, enum.Enum)):
        return
    if kind is functools.partial:
        yield from callables([value.func, value.args, value.keywords], depth)
        return
    if callable(value):
        yield value
    if issubclass(kind, dict):
        yield from callables([*value.keys(), *value.values()], depth - 1)
    elif issubclass(kind, (list, tuple, set, frozenset)):
        for item in value:
            yield from callables(item, depth - 1)
    elif kind is types.FunctionType:
        for cell in value.__closure__ or ():
            yield from callables(cell.cell_contents, depth - 1)
    elif kind is types.MethodType:
        yield from callables(value.__self__, depth - 1)
    elif not issubclass(kind, (type, types.ModuleType)) and kind.__dictoffset__:
        yield from callables(dict(object.__getattribute__(value, "__dict__")), depth - 1)


def load_all(path: Path, folder: Path, trust: bool = False) -> tuple[int, list[str]]:
    """Load everything of a recording; how many calls there were, and what must not be there."""
    loaded, wrong = 0, []
    for item in Recording.load(path, scripts=[folder / "work" / "train.py"], trust=trust):
        function = item.load()
        if torch.autograd.Function not in getattr(function, "__mro__", ()):
            wrong.append(f"the Function is {function!r}")
        for number in range(len(item.calls)):
            args, keywords = item.arguments(number)
            loaded += 1
            wrong += [
                f"an argument may call {found!r}"
                for found in callables([args, keywords])
                if not may_be_named(found, folder)
            ]
    return loaded, wrong


def attack(folder: Path, seed: str, count: int, trust: bool = False) -> dict[str, Any]:
    """Alter and load ``count`` recordings; what became of them."""
    sys.canary = []
    os.chdir(folder)
    sys.path.append(str(folder / "site"))
    path = folder / "calls.pt"
    bases = honest(folder)
    for base in bases:  # unaltered, each loads; and whatever is imported late is imported now
        torch.save(base, path)
        assert load_all(path, folder) == (1, []), base
    for name in ("torch.utils.checkpoint", "encodings.cp437", "torch.nn.functional"):
        importlib.import_module(name)
    sys.canary.clear()
    alterer = Alterer(folder, seed)
    shims = ("_pullback_shim_", "honest_package", "helper_of_train")
    watch = Watch(lambda name: name.startswith(shims))
    before = list(sys.path)
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    for number in range(count):
        data = bases[number % len(bases)]
        content = alterer.alter(data)
        if not content:
            outcomes["not written"] += 1
            continue
        path.write_bytes(content)
        (folder / "number").write_text(str(number))
        wrong: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Torch's own, of whichever of the two it has imported first.
            warnings.filterwarnings("ignore", "Setuptools is replacing distutils")
            watch.on = True
            try:
                _, wrong = load_all(path, folder, trust)
                outcomes["loaded"] += 1
            except RecordingError:
                outcomes["refused"] += 1
            except BaseException as error:
                wrong = [f"{type(error).__name__}: {error}"[:300]]
            finally:
                watch.on = False
        wrong += watch.seen + sys.canary
        if sys.path != before:
            wrong.append(f"sys.path grew: {set(sys.path) - set(before)}")
            sys.path[:] = before
        for item in ("pwned", "escaped"):
            if (folder / item).exists() or (folder.parent / item).exists():
                wrong.append(f"{item} was written")
        if wrong:
            kept = folder / f"fault-{number}.pt"
            kept.write_bytes(content)
            faults.append(f"recording {number}: {'; '.join(wrong)[:600]}")
        watch.seen.clear()
        sys.canary.clear()
    return {"outcomes": dict(outcomes), "faults": faults}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed")
    parser.add_argument("count", type=int)
    parser.add_argument("--trust", action="store_true", help="to see that the attack succeeds")
    options = parser.parse_args()
    prepare(options.folder)
    found = attack(options.folder.resolve(), options.seed, options.count, options.trust)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
