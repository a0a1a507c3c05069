"""Programs of the rooms but the checker's: beside an accelerator that nobody uses, and on it."""

__all__ = ["BESIDE", "ON_IT", "TRAINS"]

COMMON = """
import copy
import inspect
import io
import os
from dataclasses import replace
from importlib.metadata import entry_points

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from pullback.compat.unit_scaling import ScalePair, ScaleTracker
from pullback.recording._guess import guesses
from pullback.recording.codec import Encoder, Loader, decode_call
from pullback.tracking import Record, Tracker, advise_from_exponents, annotate, track
from pullback.tracking.formats import find_format, simulate_format


def built(device):
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4)
    return nn.Sequential(*layers).to(device), torch.randn(6, 8).to(device)


def measured(device):
    model, x = built(device)
    optimizer = torch.optim.AdamW(model.parameters())
    with Tracker(model, parameters=True, blocks="mxfp8", functions="relu") as tracker:
        torch.manual_seed(1)
        model.eval()(x).square().mean().backward()
        optimizer.step()
    advice, ratios = str(tracker.advise_blocks()), tracker.update_ratios()
    scales = [round(each.scale, 4) for each in tracker.totals().values()]
    return scales, advice, {name: round(ratio, 4) for name, ratio in ratios.items()}


def annotated(device):
    model, x = built(device)
    before = torch.get_rng_state()
    text = annotate(model, x, file=io.StringIO())
    assert torch.equal(torch.get_rng_state(), before), "it has drawn"
    return text


def placed(value, device):
    moved = isinstance(value, torch.Tensor)
    return value.detach().to(device).requires_grad_(value.requires_grad) if moved else value


def answer(case, device):
    "What a function of the rooms gives there, with its gradients."
    torch.manual_seed(0)
    given = list(case.inputs(torch.Generator().manual_seed(0)))
    with torch.device(device):
        given = tree_map(lambda each: placed(each, device), given)
        made = getattr(case.function, "apply", case.function)(*given)
    made = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
    sums = [each.abs().square().sum() for each in made if each.requires_grad]
    leaves = [each for each in tree_leaves(given) if getattr(each, "requires_grad", False)]
    found = torch.autograd.grad(sums, leaves, allow_unused=True) if sums else ()
    return [*made, *(each for each in found if each is not None)]
"""

BESIDE = (
    COMMON
    + """
plain = measured("cpu"), annotated("cpu"), str(advise_from_exponents({0: 2, 3: 4}, 1, largest=9.0))
names = list(inspect.signature(lambda x, mask, index, alpha: x).parameters.values())
guessed = next(guesses(names))
assert not torch.second.is_initialized(), "what is tracked on the CPU uses the device"

# New tensors lie elsewhere by default, and those that are given on the CPU.
with torch.device("second"):
    there = next(guesses(names))
assert {each.device.type for each in there if isinstance(each, torch.Tensor)} == {"second"}
assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b).cpu())
           for a, b in zip(guessed, there)), (guessed, there)

for default in ("second", "meta"):
    model, x = built("cpu")
    with torch.device(default):
        assert str(advise_from_exponents({0: 2, 3: 4}, 1, largest=9.0)) == plain[2], default
        assert annotate(model, x, file=io.StringIO()) == plain[1], default
        record, pair = Record("h"), ScalePair()
        ScaleTracker.apply(track(x.requires_grad_(), record), pair).backward(x.detach())
        record.step()
    assert abs(record.total("backward").std - x.std(correction=0)) < 1e-6, default
    assert pair.backward == pair.forward, default
"""
)

ON_IT = (
    COMMON
    + """
assert measured("second") == measured("cpu")
assert annotated("second") == annotated("cpu")

# Preconditioner has a device of its own, which it says.
cases = [case for each in entry_points(group="pullback.cases") for case in each.load()()]
assert len(cases) > 50
for case in cases:
    if case.name != "trajectory.preconditioner":
        for one, other in zip(answer(case, "cpu"), answer(case, "second"), strict=True):
            assert other.device.type == "second", case.name
            assert torch.allclose(one, other.cpu(), equal_nan=True), (case.name, one, other)

# Scales that come of the past follow a model, there and back, and into a file.
delayed = replace(find_format("E4M3 tensor"), history=4)
model, x = built("cpu")
simulated = simulate_format(model.eval(), forward=delayed, backward=delayed, measure=True)
values = []
for device in ("cpu", "second", "cpu"):
    y = simulated.to(device)(x.to(device))
    y.sum().backward()
    values.append(y.sum().item())
assert values[0] == values[2] and abs(values[0] - values[1]) < 1e-6, values
assert len(simulated.noise()) == len(copy.deepcopy(simulated.to("second")).noise()) == 6
file = io.BytesIO()
torch.save(simulated.state_dict(), file)
file.seek(0)
simulated.to("cpu").load_state_dict(torch.load(file, map_location="cpu"))
assert simulated(x).sum().item() == values[0]

# A call is made again where it was made, or on the CPU.
from named import Named

made = torch.ones(3, device="second"), torch.ones(3, device="second").as_subclass(Named)
encoder = Encoder(2**20)
call = encoder.encode_call((*made, *map(torch.device, ("second:0", "second:5"))), {})
call["arguments"].append(("tensor", 2, False, "unheard_of:0", False))
again, _ = decode_call(call["arguments"], [], [*call["tensors"], torch.ones(2)], Loader())
assert type(again[1]) is Named, again
places = [getattr(each, "device", each).type for each in again]
assert places == ["second", "second", "second", "cpu", "cpu"], places
"""
)

TRAINS = """
import os, sys, torch

class Thrice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * cotangent

Thrice.apply(torch.ones(2, device="second", requires_grad=True)).sum().backward()
"""
