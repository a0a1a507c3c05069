"""How rules read a setting from outside: each is 1.0 first, and 3.0 after it was changed."""

import importlib.machinery
import sysconfig
from dataclasses import dataclass
from typing import Any

from tests.tensor.hidden.source import IMPORTS, load

__all__ = ["SETTINGS", "Setting", "written"]


@dataclass(frozen=True)
class Setting:
    """One manner.

    Arguments:
        read: an expression in both rules; ``NAME`` is the Function.
        change: a statement of the program that changes the setting.
        head: lines before the class.
        body: lines in the class.
    """

    name: str
    read: str
    change: str
    head: str = ""
    body: str = ""


def _class(*lines: str, then: str = "BOX = Box()") -> str:
    return "\n".join(["class Box:", *(f"    {line}" for line in lines), then])


_PLAIN = _class("s = 1.0")
_MODULE = (
    "config = types.ModuleType('hidden_config'); config.s = 1.0\n"
    "sys.modules['hidden_config'] = config"
)
_READ = "S = 1.0\ndef read():\n    return S"

SETTINGS = (
    Setting("global", "S", "S = 3.0", "S = 1.0"),
    Setting("globals by name", "globals()['S']", "S = 3.0", "S = 1.0"),
    Setting("dict", "SET['s']", "SET['s'] = 3.0", "SET = {'s': 1.0}"),
    Setting("dict, replaced", "SET['s']", "SET = {'s': 3.0}", "SET = {'s': 1.0}"),
    Setting("get of a dict", "SET.get('s', 1.0)", "SET['s'] = 3.0", "SET = {}"),
    Setting("nested dict", "SET['a']['s']", "SET['a']['s'] = 3.0", "SET = {'a': {'s': 1.0}}"),
    Setting("dict of tuples", "SET['a', 1]", "SET['a', 1] = 3.0", "SET = {('a', 1): 1.0}"),
    Setting("list", "SET[0]", "SET[0] = 3.0", "SET = [1.0]"),
    Setting("last of a list", "SET[-1]", "SET.append(3.0)", "SET = [1.0]"),
    Setting("length of a list", "float(len(SET))", "SET += [0, 0]", "SET = [0]"),
    Setting("whether in a set", "3.0 if 'on' in SET else 1.0", "SET.add('on')", "SET = set()"),
    Setting("flag", "3.0 if ON else 1.0", "ON = True", "ON = False"),
    Setting("mode", "{'a': 1.0, 'b': 3.0}[MODE]", "MODE = 'b'", "MODE = 'a'"),
    Setting("text", "float(TEXT)", "TEXT = '3.0'", "TEXT = '1.0'"),
    Setting("tuple, replaced", "SET[1]", "SET = (0, 3.0)", "SET = (0, 1.0)"),
    Setting("attribute of the class", "NAME.s", "NAME.s = 3.0", body="s = 1.0"),
    Setting("dict of the class", "NAME.set['s']", "NAME.set['s'] = 3.0", body="set = {'s': 1.0}"),
    Setting("attribute of another class", "Box.s", "Box.s = 3.0", _PLAIN),
    Setting("attribute of an instance", "BOX.s", "BOX.s = 3.0", _PLAIN),
    Setting(
        "inherited attribute",
        "Child.s",
        "Box.s = 3.0",
        _class("s = 1.0", then="class Child(Box):\n    pass"),
    ),
    Setting("vars of an instance", "vars(BOX)['s']", "BOX.s = 3.0", f"{_PLAIN}\nBOX.s = 1.0"),
    Setting("getattr of an instance", "getattr(BOX, 's')", "BOX.s = 3.0", _PLAIN),
    Setting(
        "getattr of a made-up name", "getattr(BOX, KEY + '')", "BOX.s = 3.0", f"{_PLAIN}\nKEY = 's'"
    ),
    Setting("another name", "getattr(BOX, KEY)", "KEY = 't'", f"{_PLAIN}\nBOX.t = 3.0\nKEY = 's'"),
    Setting(
        "attrgetter", "operator.attrgetter('s')(BOX)", "BOX.s = 3.0", f"import operator\n{_PLAIN}"
    ),
    Setting(
        "slots",
        "BOX.s",
        "BOX.s = 3.0",
        _class("__slots__ = ('s',)", then="BOX = Box(); BOX.s = 1.0"),
    ),
    Setting(
        "property",
        "BOX.s",
        "BOX._s = 3.0",
        _class("_s = 1.0", "@property", "def s(self):", "    return self._s"),
    ),
    Setting(
        "descriptor",
        "BOX.s",
        "VALUE['s'] = 3.0",
        "VALUE = {'s': 1.0}\nclass Read:\n    def __get__(self, instance, owner):\n"
        "        return VALUE['s']\n" + _class("s = Read()"),
    ),
    Setting(
        "__getattr__",
        "BOX.s",
        "BOX.values['s'] = 3.0",
        _class(
            "def __init__(self):",
            "    self.values = {'s': 1.0}",
            "def __getattr__(self, name):",
            "    return self.__dict__['values'][name]",  # a KeyError for every other name
        ),
    ),
    Setting(
        "__getitem__",
        "BOX['s']",
        "BOX.values['s'] = 3.0",
        _class(
            "def __init__(self):",
            "    self.values = {'s': 1.0}",
            "def __getitem__(self, name):",
            "    return self.values[name]",
        ),
    ),
    Setting(
        "__call__",
        "BOX()",
        "BOX.s = 3.0",
        _class("s = 1.0", "def __call__(self):", "    return self.s"),
    ),
    Setting(
        "__float__",
        "float(BOX)",
        "BOX.s = 3.0",
        _class("s = 1.0", "def __float__(self):", "    return self.s"),
    ),
    Setting(
        "metaclass",
        "Box.s",
        "VALUE['s'] = 3.0",
        "VALUE = {'s': 1.0}\nclass Meta(type):\n    @property\n    def s(cls):\n"
        "        return VALUE['s']\nclass Box(metaclass=Meta):\n    pass",
    ),
    Setting(
        "class method",
        "Box.read()",
        "Box.s = 3.0",
        _class("s = 1.0", "@classmethod", "def read(cls):", "    return cls.s"),
    ),
    Setting(
        "dataclass", "BOX.s", "BOX.s = 3.0", f"@dataclasses.dataclass\n{_class('s: float = 1.0')}"
    ),
    Setting(
        "frozen dataclass, replaced",
        "BOX.s",
        "BOX = dataclasses.replace(BOX, s=3.0)",
        f"@dataclasses.dataclass(frozen=True)\n{_class('s: float = 1.0')}",
    ),
    Setting("namespace", "BOX.s", "BOX.s = 3.0", "BOX = types.SimpleNamespace(s=1.0)"),
    Setting(
        "named tuple, replaced",
        "BOX.s",
        "BOX = BOX._replace(s=3.0)",
        "BOX = collections.namedtuple('Box', 's')(1.0)",
    ),
    Setting(
        "enumeration",
        "MODE.value",
        "MODE = Mode.B",
        "import enum\nclass Mode(enum.Enum):\n    A = 1.0\n    B = 3.0\nMODE = Mode.A",
    ),
    Setting(
        "chain of dicts",
        "SET['s']",
        "FIRST['s'] = 3.0",
        "FIRST = {}\nSET = collections.ChainMap(FIRST, {'s': 1.0})",
    ),
    Setting("user dict", "SET['s']", "SET['s'] = 3.0", "SET = collections.UserDict(s=1.0)"),
    Setting(
        "default dict", "SET['s']", "SET['s'] = 3.0", "SET = collections.defaultdict(lambda: 1.0)"
    ),
    Setting(
        "mapping proxy",
        "SET['s']",
        "UNDER['s'] = 3.0",
        "UNDER = {'s': 1.0}\nSET = types.MappingProxyType(UNDER)",
    ),
    Setting("another module", "config.s", "config.s = 3.0", f"import sys\n{_MODULE}"),
    Setting(
        "module of sys.modules",
        "sys.modules['hidden_config'].s",
        "config.s = 3.0",
        f"import sys\n{_MODULE}",
    ),
    Setting(
        "imported in the rule",
        "__import__('hidden_config').s",
        "config.s = 3.0",
        f"import sys\n{_MODULE}",
    ),
    Setting("function of a global", "read()", "S = 3.0", _READ),
    Setting(
        "function of a function", "again()", "S = 3.0", f"{_READ}\ndef again():\n    return read()"
    ),
    Setting("function, replaced", "read()", "read = lambda: 3.0", "def read():\n    return 1.0"),
    Setting(
        "code of a function, replaced",
        "read()",
        "read.__code__ = (lambda: 3.0).__code__",
        "def read():\n    return 1.0",
    ),
    Setting("default", "read()", "read.__defaults__ = (3.0,)", "def read(s=1.0):\n    return s"),
    Setting(
        "default by keyword",
        "read()",
        "read.__kwdefaults__ = {'s': 3.0}",
        "def read(*, s=1.0):\n    return s",
    ),
    Setting(
        "mutable default",
        "read()",
        "read.__defaults__[0][0] = 3.0",
        "def read(s=[1.0]):\n    return s[0]",
    ),
    Setting(
        "attribute of a function", "read.s", "read.s = 3.0", "def read():\n    pass\nread.s = 1.0"
    ),
    Setting(
        "closure",
        "READ()",
        "WRITE(3.0)",
        "def pair():\n    s = 1.0\n    def write(new):\n        nonlocal s\n        s = new\n"
        "    return (lambda: s), write\nREAD, WRITE = pair()",
    ),
    Setting(
        "partial, replaced",
        "READ()",
        "READ = functools.partial(float, 3.0)",
        "READ = functools.partial(float, 1.0)",
    ),
    Setting(
        "partial of a dict",
        "READ('s')",
        "SET['s'] = 3.0",
        "SET = {'s': 1.0}\nREAD = functools.partial(dict.get, SET)",
    ),
    Setting(
        "bound method of a dict",
        "READ('s')",
        "SET['s'] = 3.0",
        "SET = {'s': 1.0}\nREAD = SET.__getitem__",
    ),
    Setting(
        "environment",
        "float(os.environ.get('HIDDEN_S', '1.0'))",
        "os.environ['HIDDEN_S'] = '3.0'",
        "import os\nos.environ.pop('HIDDEN_S', None)",
    ),
    Setting(
        "context variable",
        "VARIABLE.get()",
        "VARIABLE.set(3.0)",
        "VARIABLE = contextvars.ContextVar('s', default=1.0)",
    ),
    Setting("weak reference", "REF().s", "BOX.s = 3.0", f"{_PLAIN}\nREF = weakref.ref(BOX)"),
    Setting(
        "tensor, replaced",
        "T",
        "T = torch.tensor(3.0, dtype=torch.float64)",
        "T = torch.tensor(1.0, dtype=torch.float64)",
    ),
    Setting("tensor, in place", "T", "T.fill_(3.0)", "T = torch.tensor(1.0, dtype=torch.float64)"),
    Setting(
        "buffer of a module",
        "M.s",
        "M.s.fill_(3.0)",
        "M = torch.nn.Module()\nM.register_buffer('s', torch.ones((), dtype=torch.float64))",
    ),
    Setting("number of a module", "M.s", "M.s = 3.0", "M = torch.nn.Module()\nM.s = 1.0"),
    Setting(
        "training of a module", "1.0 if M.training else 3.0", "M.eval()", "M = torch.nn.Dropout()"
    ),
    Setting("numpy array", "float(A[0])", "A[0] = 3.0", "A = np.ones(1)"),
    Setting("numpy number, replaced", "float(A)", "A = np.float64(3.0)", "A = np.float64(1.0)"),
)


def written(setting: Setting, way: str, elsewhere: bool = False) -> Any:
    """The module of a program: ``F`` reads the setting in both rules, ``CHANGE`` changes it.

    Arguments:
        way: ``"Function"``, ``"complete"``, or ``"torch"`` for the class as published.
        elsewhere: the setting belongs to another package, whose function the rules call.
    """
    if elsewhere:
        return _written_elsewhere(setting, way)
    base = "pullback.Function" if way == "Function" else "torch.autograd.Function"
    made = "pullback.complete(Reading)" if way == "complete" else "Reading"
    body = f"    {setting.body}\n" if setting.body else ""
    source = f"""{IMPORTS}
{setting.head}
class Reading({base}):
{body}    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3 * ({setting.read})
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return 3 * x * x * ({setting.read}) * g

F = {made}
CHANGE = {setting.change!r}
"""
    return load(source.replace("NAME", "Reading"))


def _written_elsewhere(setting: Setting, way: str) -> Any:
    library = load(f"{IMPORTS}\n{setting.head}\ndef setting():\n    return {setting.read}\n")
    name = library.__name__
    origin = f"{sysconfig.get_path('purelib')}/{name}.py"  # as of an installed package
    library.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=origin)
    module = written(
        Setting(setting.name, "library.setting()", "", f"import {name} as library"), way
    )
    module.CHANGE = f"exec({setting.change!r}, vars(library))"
    return module
