"""What the modules of this room share: factors that a change of dtype leaves alone."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from pullback.gradients._factor import Factor, check_factor

__all__ = ["FactorModule", "GradientModule"]


class GradientModule(nn.Module):
    """A module that shapes a gradient.

    Its factors move with ``to(device)`` and keep their dtype under ``half()`` and
    ``to(dtype)``: a factor of 1e-9 in float16 would become 0.
    """

    def keep(self, name: str, value: Any) -> None:
        """Store an argument: a parameter as such, another tensor as a buffer, the rest plainly.

        Arguments:
            name: the attribute's name.
            value: the argument as it was given, already checked.
        """
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(name, value.detach().clone())
        else:
            setattr(self, name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "GradientModule":
        # nn.Module casts every floating buffer, parameter and its gradient; only their device may
        # change here. Modules within, such as a parametrization, are cast as they are anywhere.
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        if recurse:
            for child in self.children():
                child._apply(fn)
        super()._apply(move, recurse=False)
        return self

    def extra_repr(self) -> str:
        """Return the arguments for the module's printed form."""
        shown = {
            **{name: value for name, value in vars(self).items() if self._is_argument(name)},
            **dict(self.named_parameters(recurse=False)),
            **dict(self.named_buffers(recurse=False)),
        }
        return ", ".join(f"{name}={_show(value)}" for name, value in shown.items())

    @staticmethod
    def _is_argument(name: str) -> bool:
        return not name.startswith("_") and name != "training"


class FactorModule(GradientModule):
    """A module with one factor.

    Arguments:
        factor: a number or a tensor; a tensor becomes a buffer, a parameter stays one.
        allow_nan: take NaN and infinite factors.
    """

    factor: Factor
    allow_nan: bool

    def __init__(self, factor: Factor, *, allow_nan: bool = False) -> None:
        super().__init__()
        check_factor(factor, None, type(self).__name__, allow_nan=allow_nan)
        self.keep("factor", factor)
        self.allow_nan = allow_nan


def _show(value: object) -> str:
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)}"
    return repr(value)
