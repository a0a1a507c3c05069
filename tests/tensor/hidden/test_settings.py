"""A setting that changes between calls is followed, wherever rules read it from."""

import os

import pytest
import torch
from tests.tensor.both import second
from tests.tensor.hidden.settings import SETTINGS, written
from tests.tensor.hidden.source import unload

from pullback.errors import PullbackError

pytestmark = pytest.mark.sampled(45)

func = torch.func
X = torch.tensor([0.6, -1.1, 1.4], dtype=torch.float64)
ROWS = torch.stack([X, 2 * X])

every = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
ways = pytest.mark.parametrize("way", ["Function", "complete"])


def gradient(f):
    return func.grad(lambda x: f(x).sum())


EAGER = {
    "second order": lambda f: second(f, X),
    "jvp": lambda f: func.jvp(f, (X,), (X.cos(),)),
    "hessian": lambda f: func.hessian(lambda x: f(x).sum())(X),
    "vmap of grad": lambda f: func.vmap(gradient(f))(ROWS),
}
COMPILED = {"apply": lambda f: lambda x: f(x) + 0, "grad": gradient}


@pytest.fixture
def program(request):
    modules = []

    def make(setting, way, elsewhere=False):
        modules.append(written(setting, way, elsewhere))
        return modules[-1]

    yield make
    for module in modules:
        unload(module)
    os.environ.pop("HIDDEN_S", None)
    torch._dynamo.reset()


def change(module):
    exec(module.CHANGE, vars(module))


@every
@ways
def test_followed_by_every_derived_rule(program, setting, way):
    module = program(setting, way)
    for scale in (1.0, 3.0):
        if scale == 3.0:
            change(module)
        for name, ask in EAGER.items():
            want = ask(lambda x, s=scale: x**3 * s)
            try:
                got = ask(module.F.apply)
            except PullbackError:
                continue
            torch.testing.assert_close(
                got, want, msg=lambda text, n=name, s=scale: f"{n}, {s}: {text}"
            )


@every
@ways
def test_a_change_between_forward_and_backward_is_torchs(program, setting, way):
    found = []
    for kind in ("torch", way):
        module, x = program(setting, kind), X.clone().requires_grad_()
        y = module.F.apply(x)
        change(module)
        y.sum().backward()
        found.append(x.grad)
        os.environ.pop("HIDDEN_S", None)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[0], 9 * X * X)


@pytest.mark.sampled(3)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@ways
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.filterwarnings("ignore")  # the compiler warns of what it cannot trace
def test_compiled_code_follows_where_torchs_own_does(program, setting, way, elsewhere):
    if elsewhere and setting.body:
        pytest.skip("an attribute of the Function is at home where the Function is")
    for name, ask in COMPILED.items():
        if not _follows(program(setting, way, elsewhere), name, ask):
            os.environ.pop("HIDDEN_S", None)
            stale = not _follows(program(setting, "torch", elsewhere), name, ask)
            assert stale, f"{name}: torch follows this setting, and ours keeps a value that changed"
        os.environ.pop("HIDDEN_S", None)


def _follows(module, name, ask):
    """Whether compiled code is right before and after the change, or is refused."""
    torch._dynamo.reset()
    compiled = torch.compile(ask(module.F.apply), backend="eager", fullgraph=True)
    for scale in (1.0, 3.0):
        if scale == 3.0:
            change(module)
        x = X.clone().requires_grad_()
        try:
            got = compiled(x)
            got = (got, *torch.autograd.grad(got.sum(), x)) if name == "apply" else (got,)
        except Exception:
            continue  # refused, by us or by the compiler
        want = (X**3 * scale, 3 * X * X * scale)
        if not all(torch.allclose(a, b) for a, b in zip(got[::-1], want[::-1], strict=False)):
            return False
    return True
