"""torchkbnufft: non-uniform Fourier transforms."""

import torch

from benchmarks.wild._case import Published, randn

PACKAGE = "torchkbnufft"


def _plan(generator):
    from torchkbnufft import KbInterp

    plan = KbInterp(im_size=(4, 4), grid_size=(6, 6), numpoints=2).double()
    trajectory = randn(generator, 2, 5, grad=False).clamp(-3, 3)
    return plan, trajectory


def _table(generator, forward):
    plan, trajectory = _plan(torch.Generator().manual_seed(3))
    shape = (1, 1, 6, 6) if forward else (1, 1, 5)
    data = randn(generator, *shape, dtype=torch.complex128)
    common = (plan.n_shift, plan.numpoints, plan.table_oversamp, plan.offsets.to(torch.long))
    size = () if forward else (plan.grid_size.to(torch.long),)
    return (data, trajectory, _tables(plan), *common, *size)


def _tables(plan):
    return [table for name, table in plan.named_buffers() if name.startswith("table_")][:2]


CASES = [
    Published("torchkbnufft._autograd.interp:KbTableInterpForward", lambda g: _table(g, True)),
    Published("torchkbnufft._autograd.interp:KbTableInterpAdjoint", lambda g: _table(g, False)),
]
