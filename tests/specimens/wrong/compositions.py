"""Functions whose transforms are right one by one and wrong together."""

import torch
from tests.specimens._specimen import Specimen, normal


class SurrogateTangent(torch.autograd.Function):
    """A jvp of its own, which torch drops where it compiles forward mode."""

    generate_vmap_rule = True
    gradient = "surrogate"

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * cotangent

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * tangent


class ReversedTangent(torch.autograd.Function):
    """Gradient reversal with both rules, as its jvp is dropped when compiled."""

    gradient = "surrogate"

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return -cotangent

    @staticmethod
    def jvp(ctx, tangent):
        return -tangent


class BatchedReversal(torch.autograd.Function):
    """Right under vmap and under grad; compiled together, torch traces forward alone."""

    generate_vmap_rule = True
    gradient = "surrogate"

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return -2 * cotangent


class Inner(torch.autograd.Function):
    """cos(x) with a right backward, and a jvp that nobody calls but forward over reverse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        return -ctx.saved_tensors[0].sin() * cotangent

    @staticmethod
    def jvp(ctx, tangent):
        return 0 * tangent


class ForwardOverReverse(torch.autograd.Function):
    """Its backward applies a Function whose tangent is zero."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        return Inner.apply(ctx.saved_tensors[0]) * cotangent

    @staticmethod
    def jvp(ctx, tangent):
        return ctx.saved_tensors[0].cos() * tangent


class KernelInBatches(torch.autograd.Function):
    """The rule for batches is a kernel where it sees no graph, as under torch.func.grad."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.saved_tensors[0] * cotangent

    @staticmethod
    def vmap(info, in_dims, x):
        if x.requires_grad and not torch._C._functorch.is_gradtrackingtensor(x):
            return KernelInBatches.apply(x), in_dims[0]
        return x.detach().exp(), in_dims[0]


SPECIMENS = [
    Specimen(SurrogateTangent, lambda: (normal(3),), "compile"),
    Specimen(ReversedTangent, lambda: (normal(3),), "compile"),
    Specimen(BatchedReversal, lambda: (normal(3),), "compile"),
    Specimen(ForwardOverReverse, lambda: (normal(3),), "compositions"),
    Specimen(KernelInBatches, lambda: (normal(3),), "compositions"),
]
