"""Where a value waits between forward and backward: 80 ways to put ``h`` down and to take it up.

Both halves are source code: ``put`` runs in forward, ``take`` in backward and leaves ``h`` again.
"""

from dataclasses import dataclass

__all__ = ["ORDINARY", "STORES", "Store"]


@dataclass(frozen=True)
class Store:
    """One hiding place as lines of source.

    Arguments:
        saves: what is given to `save_for_backward` beside the inputs; it is ``kept`` in backward.
        head: lines before the class.
        body: lines in the class.
        returns: an output beside the value.
        marked: the further output is marked as not differentiable.
        number: keeps one number, so that what is hidden has to be one.
    """

    name: str
    put: str = ""
    take: str = ""
    saves: str = ""
    head: str = ""
    body: str = ""
    returns: str = ""
    marked: bool = True
    number: bool = False


_BOX = """\
class Box:
    def __init__(self, h):
        self.h = h
    def get(self):
        return self.h
"""
_DATA = "@dataclasses.dataclass{}\nclass Box:\n    h: object\n    name: str = 'box'"
_SLOTS = "class Box:\n    __slots__ = ('h',)\n    def __init__(self, h):\n        self.h = h"
_PROPERTY = (
    "class Box:\n    def __init__(self, h):\n        self._h = h\n"
    "    @property\n    def h(self):\n        return self._h"
)
_MODULE = (
    "class Box(torch.nn.Module):\n    def __init__(self, h):\n        super().__init__()\n"
    "        self.register_buffer('h', h)"
)
_CALLABLE = (
    "class Box:\n    def __init__(self, h):\n        self.h = h\n"
    "    def __call__(self):\n        return self.h"
)
_KEPT = "h, = kept"


def _attribute(name: str, value: str, take: str, head: str = "", number: bool = False) -> Store:
    return Store(name, f"ctx.kept = {value}", f"h = {take}", head=head, number=number)


# What published code does every day: here a refusal is a loss.
_EVERYDAY = (
    Store("saved", "", _KEPT, saves="h"),
    Store("saved detached", "", _KEPT, saves="h.detach()"),
    Store("saved data", "", _KEPT, saves="h.data"),
    Store("saved clone", "", _KEPT, saves="h.clone()"),
    Store("saved two", "", "h = kept[0] + kept[1]", saves="h / 4, h * 0.75"),
    _attribute("attribute", "h", "ctx.kept"),
    _attribute("attribute detached", "h.detach()", "ctx.kept"),
    _attribute("attribute data", "h.data", "ctx.kept"),
    _attribute("list", "[h]", "ctx.kept[0]"),
    _attribute("tuple", "(1, h)", "ctx.kept[1]"),
    _attribute("dict", "{'h': h}", "ctx.kept['h']"),
    _attribute("nested", "{'a': [1, ({'h': h},)]}", "ctx.kept['a'][1][0]['h']"),
    _attribute("object", "Box(h)", "ctx.kept.h", _BOX),
    _attribute("nested object", "Box([Box({'h': Box(h)})])", "ctx.kept.h[0].h['h'].h", _BOX),
    _attribute("dataclass", "Box(h)", "ctx.kept.h", _DATA.format("")),
    _attribute("namespace", "types.SimpleNamespace(h=h)", "ctx.kept.h"),
    _attribute(
        "namedtuple", "Box(h, 1)", "ctx.kept.h", "Box = collections.namedtuple('Box', 'h n')"
    ),
    _attribute("closure", "lambda: h", "ctx.kept()"),
    _attribute("lambda default", "lambda h=h: h", "ctx.kept()"),
    _attribute("closure over a product", "lambda g: h * g", "ctx.kept(torch.ones_like(g))"),
    _attribute("partial", "functools.partial(torch.mul, h)", "ctx.kept(1)"),
    _attribute("partial keyword", "functools.partial(dict, h=h)", "ctx.kept()['h']"),
    _attribute("bound method", "h.mul", "ctx.kept(1)"),
    _attribute("bound method of an object", "Box(h).get", "ctx.kept()", _BOX),
)

_UNUSUAL = (
    _attribute("frozen dataclass", "Box(h)", "ctx.kept.h", _DATA.format("(frozen=True)")),
    _attribute("object with slots", "Box(h)", "ctx.kept.h", _SLOTS),
    _attribute("property", "Box(h)", "ctx.kept.h", _PROPERTY),
    _attribute("callable object", "Box(h)", "ctx.kept()", _CALLABLE),
    _attribute("module buffer", "Box(h.detach())", "ctx.kept.h", _MODULE),
    _attribute("parameter", "torch.nn.Parameter(h.detach(), False)", "ctx.kept"),
    _attribute("deque", "collections.deque([h])", "ctx.kept[0]"),
    _attribute("ordered dict", "collections.OrderedDict(h=h)", "ctx.kept['h']"),
    _attribute("user dict", "collections.UserDict(h=h)", "ctx.kept['h']"),
    _attribute("default dict", "collections.defaultdict(list, h=[h])", "ctx.kept['h'][0]"),
    _attribute("mapping proxy", "types.MappingProxyType({'h': h})", "ctx.kept['h']"),
    _attribute("set", "{h}", "next(iter(ctx.kept))"),
    _attribute("repeating iterator", "itertools.repeat(h)", "next(ctx.kept)"),
    _attribute(
        "generator object",
        "remember(h)",
        "next(ctx.kept)",
        ("def remember(h):\n    while True:\n        yield h"),
    ),
    _attribute("cycle", "itertools.cycle([h])", "next(ctx.kept)"),
    _attribute(
        "wrapped function",
        "wrap(lambda: h)",
        "ctx.kept()",
        (
            "def wrap(f):\n    @functools.wraps(f)\n    def inner():\n"
            "        return f()\n    return inner"
        ),
    ),
    _attribute("cached function", "functools.cache(lambda: h)", "ctx.kept()"),
    _attribute(
        "attribute of a function",
        "mark(h)",
        "ctx.kept.h",
        ("def mark(h):\n    f = lambda: None\n    f.h = h\n    return f"),
    ),
    _attribute(
        "future",
        "fulfil(h)",
        "ctx.kept.result()",
        ("def fulfil(h):\n    f = concurrent.futures.Future()\n    f.set_result(h)\n    return f"),
    ),
    _attribute("exception", "ValueError(h)", "ctx.kept.args[0]"),
    _attribute(
        "array of objects",
        "boxed(h)",
        "ctx.kept[0]",
        ("def boxed(h):\n    a = np.empty(1, dtype=object)\n    a[0] = h\n    return a"),
    ),
    _attribute(
        "weak reference",
        "weakref.ref(keep(h))",
        "ctx.kept()",
        ("ALIVE = []\ndef keep(h):\n    ALIVE.append(h)\n    return h"),
    ),
    _attribute("row of a stack", "torch.stack([h, -h]).unbind()[0]", "ctx.kept"),
    _attribute(
        "tensor attribute",
        "tagged(h)",
        "ctx.kept.tag",
        ("def tagged(h):\n    t = torch.zeros(())\n    t.tag = h\n    return t"),
    ),
    Store("dict of the context", "ctx.__dict__['kept'] = h", "h = ctx.kept"),
    Store("vars of the context", "vars(ctx).update(kept=h)", "h = vars(ctx)['kept']"),
    Store("private name of the engine", "ctx._needs = h", "h = ctx._needs"),
    Store("module global", "global KEPT\n        KEPT = h", "h = KEPT", head="KEPT = None"),
    Store("global dict", "KEPT['h'] = h", "h = KEPT['h']", head="KEPT = {}"),
    Store("global list", "KEPT.append(h)", "h = KEPT[-1]", head="KEPT = []"),
    Store(
        "global by number",
        "ctx.n = len(KEPT); KEPT.append(h)",
        "h = KEPT[ctx.n]",
        head="KEPT = []",
    ),
    Store("object outside", "KEPT.h = h", "h = KEPT.h", head="KEPT = types.SimpleNamespace()"),
    Store(
        "instance in a list outside",
        "KEPT[0].h = h",
        "h = KEPT[0].h",
        head="KEPT = [types.SimpleNamespace()]",
    ),
    Store("class attribute", "NAME.kept = h", "h = NAME.kept", body="kept = None"),
    Store("class dict", "NAME.kept['h'] = h", "h = NAME.kept['h']", body="kept = {}"),
    Store(
        "class dict by number",
        "ctx.n = len(NAME.kept); NAME.kept[ctx.n] = h",
        "h = NAME.kept[ctx.n]",
        body="kept = {}",
    ),
    Store("attribute of the rule", "NAME.backward.kept = h", "h = NAME.backward.kept"),
    Store("thread local", "KEPT.h = h", "h = KEPT.h", head="KEPT = threading.local()"),
    Store(
        "context variable",
        "ctx.n = KEPT.set(h); ctx.c = contextvars.copy_context()",
        "h = ctx.c[KEPT]",
        head="KEPT = contextvars.ContextVar('kept')",
    ),
    Store(
        "queue",
        "KEPT.put(h)",
        "h = KEPT.get_nowait(); KEPT.put(h)",
        head="KEPT = queue.LifoQueue()",
    ),
    Store(
        "buffer outside",
        "KEPT.resize_(h.shape).copy_(h.detach())",
        "h = KEPT.to(g.dtype)",
        head="KEPT = torch.zeros(0, dtype=torch.float64)",
    ),
    Store(
        "buffer on the context", "ctx.kept = torch.empty_like(h); ctx.kept.copy_(h)", "h = ctx.kept"
    ),
    Store(
        "module buffer written in forward",
        "KEPT.h.resize_(h.shape).copy_(h.detach())",
        "h = KEPT.h.clone().to(g.dtype)",
        head=(
            "KEPT = torch.nn.Module()\n"
            "KEPT.register_buffer('h', torch.zeros(0, dtype=torch.float64))"
        ),
    ),
    Store(
        "scratch of numpy outside",
        "ctx.shape = h.shape; KEPT[:h.numel()] = h.detach().double().reshape(-1).numpy()",
        "h = torch.from_numpy(KEPT[:ctx.shape.numel()].copy()).reshape(ctx.shape).to(g.dtype)",
        head="KEPT = np.zeros(64)",
    ),
    Store("cache by id", "ctx.n = id(x); KEPT[ctx.n] = h", "h = KEPT[ctx.n]", head="KEPT = {}"),
    Store(
        "first in first out",
        "KEPT.queue.clear(); KEPT.put(h)",
        "h = KEPT.get_nowait(); KEPT.put(h)",
        head="KEPT = queue.Queue()",
    ),
    Store("global by shape", "KEPT[x.shape] = h", "h = KEPT[g.shape]", head="KEPT = {}"),
    Store(
        "text of the numbers",
        "ctx.kept = repr(h.tolist())",
        "h = torch.tensor(eval(ctx.kept), dtype=g.dtype)",
    ),
    _attribute("list of numbers", "h.tolist()", "torch.tensor(ctx.kept, dtype=g.dtype)"),
    _attribute("one number", "h.sum().item()", "ctx.kept", number=True),
    _attribute("number of float()", "float(h.sum())", "ctx.kept", number=True),
    _attribute(
        "numpy array", "h.detach().double().numpy()", "torch.from_numpy(ctx.kept).to(g.dtype)"
    ),
    _attribute("numpy number", "np.float64(h.sum().item())", "float(ctx.kept)", number=True),
    _attribute(
        "array of the standard library",
        "array.array('d', h.double().reshape(-1).tolist())",
        "torch.tensor(ctx.kept.tolist(), dtype=g.dtype)",
    ),
    _attribute("bytes", "pickle.dumps(h.detach().clone())", "pickle.loads(ctx.kept)"),
    _attribute(
        "integers of the same bits",
        "bits(h)",
        "torch.from_numpy(ctx.kept.view('f8')).to(g.dtype)",
        ("def bits(h):\n    return h.detach().double().numpy().view('i8')"),
    ),
    Store("output not differentiable", "", "h = kept[0]", saves="h", returns="h"),
    Store("output not differentiable, on ctx", "ctx.kept = h", "h = ctx.kept", returns="h"),
    Store("output detached", "", "h = kept[0]", saves="h.detach()", returns="h.detach()"),
    Store("second output", "", "h = kept[0]", saves="h", returns="h", marked=False),
    Store(
        "reused ids",
        "ctx.kept = recycled(h)",
        "h = ctx.kept",
        head=(
            "def recycled(h):\n    for i in range(3):\n        t = h * (i + 1)\n        del t\n"
            "    t = h * 2\n    return t / 2"
        ),
    ),
)

STORES = (*_EVERYDAY, *_UNUSUAL)
# Names of the places where answers have to be right rather than refused.
ORDINARY = frozenset(store.name for store in _EVERYDAY)
