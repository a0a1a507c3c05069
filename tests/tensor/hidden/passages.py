"""Through what a value passes unseen: 40 ways to compute ``t`` again with its history cut.

Each is the source of ``passage(t)``, which returns the value of ``t``; what it does to the graph is
the matter. It stands in forward, around what is kept, or in backward, around what is used.
"""

from dataclasses import dataclass

__all__ = ["ORDINARY_PASSAGES", "PASSAGES", "Passage"]


@dataclass(frozen=True)
class Passage:
    """One way through, as source.

    Arguments:
        body: statements of ``passage(t)``.
        head: lines before it.
    """

    name: str
    body: str
    head: str = ""


def _returns(name: str, value: str, head: str = "") -> Passage:
    return Passage(name, f"return {value}", head)


_OP = """\
if not hasattr(torch.ops.hidden, "{name}"):
    @torch.library.custom_op("hidden::{name}", mutates_args={mutates})
    def _{name}({parameters}) -> {result}:
        {body}
"""

_ORDINARY = (
    _returns("detach", "t.detach()"),
    _returns("torch.detach", "torch.detach(t)"),
    _returns("data", "t.data"),
    _returns("detach and clone", "t.detach().clone()"),
    _returns("variable", "torch.autograd.Variable(t)"),
    _returns("variable of data", "torch.autograd.Variable(t.data)"),
    Passage("no_grad", "with torch.no_grad():\n        return t * 1"),
    Passage("set_grad_enabled", "with torch.set_grad_enabled(False):\n        return t * 1"),
    _returns(
        "no_grad as decorator", "helper(t)", ("@torch.no_grad()\ndef helper(t):\n    return t + 0")
    ),
    Passage("copy_ into empty", "out = torch.empty_like(t)\n    return out.copy_(t)"),
    Passage("copy_ into zeros", "out = torch.zeros_like(t)\n    out.copy_(t)\n    return out"),
    Passage("assigned by index", "out = torch.empty_like(t)\n    out[...] = t\n    return out"),
)

_UNUSUAL = (
    _returns("numpy", "torch.from_numpy(t.detach().double().numpy() * 1).to(t.dtype)"),
    _returns(
        "numpy with force", "torch.as_tensor(t.double().numpy(force=True).copy()).to(t.dtype)"
    ),
    _returns(
        "numpy asarray", "torch.as_tensor(np.asarray(t.detach().double()).copy()).to(t.dtype)"
    ),
    _returns("numpy array of a list", "torch.tensor(np.array(t.tolist())).to(t.dtype)"),
    _returns("tensor of a list", "torch.tensor(t.tolist(), dtype=t.dtype)"),
    _returns("tensor of a tensor", "torch.tensor(t.detach())"),
    _returns("new tensor", "t.new_tensor(t.tolist())"),
    _returns(
        "items", "torch.tensor([e.item() for e in t.reshape(-1)], dtype=t.dtype).reshape(t.shape)"
    ),
    _returns(
        "floats", "torch.tensor([float(e) for e in t.reshape(-1)], dtype=t.dtype).reshape(t.shape)"
    ),
    Passage(
        "item times ones",
        "return sum(torch.full_like(t, float(e)) * m for e, m in zip(t.reshape(-1), torch.eye(t.numel(), dtype=t.dtype).reshape(-1, *t.shape)))",
    ),
    Passage(
        "inference_mode",
        "with torch.inference_mode():\n        out = t * 1\n    return out.clone()",
    ),
    Passage(
        "out=",
        "out = torch.empty(t.shape, dtype=t.dtype)\n    with torch.no_grad():\n        torch.add(t, 0, out=out)\n    return out",
    ),
    Passage(
        "written by numpy",
        "out = torch.empty(t.shape, dtype=torch.float64)\n    np.multiply(t.detach().double().numpy(), 1, out=out.numpy())\n    return out.to(t.dtype)",
    ),
    Passage(
        "written by numpy into zeros",
        "out = torch.zeros(t.shape, dtype=torch.float64)\n    out.numpy()[...] = t.detach().double().numpy()\n    return out.to(t.dtype)",
    ),
    _returns("dlpack", "torch.from_dlpack(t.detach()).clone()"),
    _returns(
        "numpy over dlpack",
        "torch.from_numpy(np.from_dlpack(t.detach().double()).copy()).to(t.dtype)",
    ),
    _returns(
        "bits as integers",
        "t.detach().double().view(torch.int64).add(0).view(torch.float64).to(t.dtype)",
    ),
    _returns(
        "bits as integers with history",
        "t.double().view(torch.int64).view(torch.float64).to(t.dtype)",
    ),
    _returns(
        "frombuffer",
        "torch.frombuffer(bytearray(t.detach().double().contiguous().numpy().tobytes()), dtype=torch.float64).reshape(t.shape).to(t.dtype)",
    ),
    Passage(
        "same storage",
        "out = torch.empty(0, dtype=t.dtype)\n    s = t.detach().contiguous()\n    return out.set_(s.untyped_storage(), s.storage_offset(), s.shape, s.stride())",
    ),
    _returns("deepcopy", "copy.deepcopy(t.detach())"),
    _returns("pickle", "pickle.loads(pickle.dumps(t.detach().clone()))"),
    Passage(
        "torch.save",
        "file = io.BytesIO()\n    torch.save(t.detach().clone(), file)\n    file.seek(0)\n    return torch.load(file)",
    ),
    _returns("parameter", "torch.nn.Parameter(t.detach(), requires_grad=False) * 1"),
    Passage(
        "a thread",
        "out = []\n    w = threading.Thread(target=lambda: out.append(t.detach() * 1))\n    w.start()\n    w.join()\n    return out[0]",
    ),
    Passage(
        "a thread without gradients",
        "def work():\n        with torch.no_grad():\n            return t * 1\n    with concurrent.futures.ThreadPoolExecutor(1) as pool:\n        return pool.submit(work).result()",
    ),
    _returns("operator of aten", "torch.ops.aten.detach.default(t)"),
    _returns("alias of aten", "torch.ops.aten.detach(torch.ops.aten.alias(t))"),
    _returns("make_subclass", "torch.Tensor._make_subclass(torch.Tensor, t.detach())"),
    Passage(
        "without torch functions",
        "with torch._C.DisableTorchFunction():\n        return t.detach() * 1",
    ),
    Passage(
        "without torch functions at all",
        "with torch._C.DisableTorchFunctionSubclass():\n        with torch.no_grad():\n            return t * 1",
    ),
    Passage("below autograd", "with torch._C._AutoDispatchBelowAutograd():\n        return t * 1"),
    _returns(
        "script", "scripted(t)", "@torch.jit.script\ndef scripted(t):\n    return t.detach() * 1"
    ),
    _returns(
        "custom op",
        "torch.ops.hidden.copied(t)",
        _OP.format(
            name="copied",
            mutates="()",
            parameters="t: torch.Tensor",
            result="torch.Tensor",
            body="return t.clone()",
        ),
    ),
    Passage(
        "custom op that writes",
        "out = torch.empty_like(t)\n    torch.ops.hidden.written(t, out)\n    return out",
        _OP.format(
            name="written",
            mutates="('out',)",
            parameters="t: torch.Tensor, out: torch.Tensor",
            result="None",
            body="out.copy_(t)",
        ),
    ),
    _returns(
        "library implementation",
        "torch.ops.hidden_library.copied(t)",
        (
            "if not hasattr(torch.ops.hidden_library, 'copied'):\n"
            "    LIBRARY = torch.library.Library('hidden_library', 'DEF')\n"
            "    LIBRARY.define('copied(Tensor t) -> Tensor')\n"
            "    LIBRARY.impl('copied', lambda t: t.clone(), 'CPU')\n"
            "    torch.hidden_library = LIBRARY"
        ),
    ),
    _returns(
        "another Function without a gradient",
        "Inner.apply(t)",
        (
            "class Inner(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t):\n        return t * 1\n"
            "    @staticmethod\n    def backward(ctx, g):\n        return None"
        ),
    ),
    _returns(
        "another Function, split, without a gradient",
        "Inner.apply(t)",
        (
            "class Inner(torch.autograd.Function):\n    generate_vmap_rule = True\n    @staticmethod\n    def forward(t):\n        return t * 1\n"
            "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        pass\n"
            "    @staticmethod\n    def backward(ctx, g):\n        return torch.zeros_like(g)"
        ),
    ),
    _returns(
        "another Function, not differentiable",
        "Inner.apply(t)",
        (
            "class Inner(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t):\n        out = t * 1\n        ctx.mark_non_differentiable(out)\n        return out\n"
            "    @staticmethod\n    def backward(ctx, g):\n        return g"
        ),
    ),
    Passage("asks requires_grad", "return t if t.requires_grad else t.detach()"),
    Passage("asks grad mode", "return t if torch.is_grad_enabled() else t.detach()"),
    Passage(
        "a private autograd",
        "with torch.enable_grad():\n        u = t.detach().requires_grad_()\n        out, = torch.autograd.grad((u * u / 2).sum(), u)\n    return out",
    ),
    Passage(
        "a private func.grad",
        "u = t.detach()\n    return torch.func.grad(lambda s: (s * s / 2).sum())(u)",
    ),
    Passage("a hook that detaches", "return torch.stack([t.detach(), t.detach()]).mean(0)"),
    Passage(
        "resized buffer",
        "BUFFER.resize_(t.shape).copy_(t.detach())\n    return BUFFER.to(t.dtype)",
        "BUFFER = torch.zeros(0, dtype=torch.float64)",
    ),
    Passage(
        "complex and back",
        "return torch.complex(t.detach().double(), t.detach().double()).real.to(t.dtype)",
    ),
    Passage(
        "a lookup",
        "s, i = t.detach().reshape(-1).sort()\n    return torch.empty_like(s).scatter_(0, i, s).reshape(t.shape)",
    ),
    Passage(
        "cached by value",
        "key = tuple(t.reshape(-1).tolist())\n    return CACHE.setdefault(key, t.detach().clone())",
        "CACHE = {}",
    ),
    Passage("foreach", "return torch._foreach_mul([t.detach()], 1.0)[0]"),
    Passage(
        "stored in a list of the module",
        "KEEP.append(t.detach())\n    return KEEP[-1] * 1",
        "KEEP = []",
    ),
)

PASSAGES = (*_ORDINARY, *_UNUSUAL)
ORDINARY_PASSAGES = frozenset(passage.name for passage in _ORDINARY)
