"""Functions that use the device in ways that the CPU knows nothing of."""

import torch


class OnItAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        assert x.device.type == "second"
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x[index]

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        rows = cotangent.new_zeros(ctx.rows, *cotangent.shape[1:])
        return rows.index_add(0, index, cotangent), None


class LosesIt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        beyond = torch.tensor([99], device=cotangent.device)
        return 2 * cotangent[beyond] if cotangent.stride(-1) == 0 else 2 * cotangent
