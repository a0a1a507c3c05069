"""The names of ``unit_scaling.scale``; see `pullback.compat.unit_scaling`."""

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from pullback.gradients import scale_forward, scale_gradient

__all__ = ["scale_bwd", "scale_fwd"]


def scale_fwd(input: Tensor, scale: float) -> Tensor:  # noqa: A002 - the name that callers use
    """Return ``scale * input``, with the gradient as it is.

    Arguments:
        input: shape (...), any floating or complex dtype, or a torch.fx proxy.
        scale: the factor of the value.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import scale_fwd
        >>> scale_fwd(torch.ones(2), 3.5)
        tensor([3.5000, 3.5000])
    """
    if has_torch_function_unary(input):  # torch.fx keeps the call as one node
        return handle_torch_function(scale_fwd, (input,), input, scale)
    return scale_forward(input, scale, allow_nan=True)


def scale_bwd(input: Tensor, scale: float) -> Tensor:  # noqa: A002 - the name that callers use
    """Return ``input``, with the gradient multiplied by ``scale``.

    Arguments:
        input: shape (...), any floating or complex dtype, or a torch.fx proxy.
        scale: the factor of the gradient.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import scale_bwd
        >>> x = torch.ones(2, requires_grad=True)
        >>> scale_bwd(x, 3.5).sum().backward()
        >>> x.grad
        tensor([3.5000, 3.5000])
    """
    if has_torch_function_unary(input):  # torch.fx keeps the call as one node
        return handle_torch_function(scale_bwd, (input,), input, scale)
    return scale_gradient(input, scale, allow_nan=True)
