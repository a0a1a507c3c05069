"""`Measures`: statistics of one's own, taken on the device and read back with the others."""

from collections.abc import Callable, Mapping

import torch

from pullback.errors import ArgumentError
from pullback.internal._arguments import checked
from pullback.internal.torch import disable_current_modes, disable_torch_function
from pullback.tracking._outputs import is_floating
from pullback.tracking.run._identity import Key, Place
from pullback.tracking.run._log import Measured

__all__ = ["Measure", "Measures", "channel_maximum"]

Measure = Callable[[torch.Tensor], torch.Tensor]


@checked
def channel_maximum(dim: int = -1) -> Measure:
    """A statistic for `Tracker`: the largest ``|x|`` at each place along one dimension.

    Arguments:
        dim: the dimension of the channels: -1 for the features of a linear layer, 1 for the
            channels of a convolution. A tensor without it gives its largest ``|x|``.

    Example:
        >>> import torch
        >>> from pullback.tracking import channel_maximum
        >>> channel_maximum()(torch.tensor([[1.0, -2.0], [-3.0, 0.0]])).tolist()
        [3.0, 2.0]
    """

    def measure(values: torch.Tensor) -> torch.Tensor:
        size = values.abs()
        if not -size.dim() <= dim < size.dim():
            return size.amax() if size.numel() else size.new_zeros(())
        rows = size.movedim(dim, 0).flatten(1) if size.dim() > 1 else size.unsqueeze(1)
        return rows.amax(1) if rows.shape[1] else size.new_zeros(rows.shape[0])

    return measure


class Measures:
    """What functions of one's own made of each tensor, waiting on its device.

    ``blocks`` are the same, of what blocks lose of floating tensors, and of factors of products.
    """

    def __init__(
        self, functions: Mapping[str, Measure], blocks: Mapping[str, Measure] | None = None
    ) -> None:
        self.functions = dict(functions)
        self.blocks = dict(blocks or {})
        self._waiting: list[tuple[Key, Place, str, torch.Tensor]] = []

    def take(
        self,
        values: torch.Tensor,
        factor: float | torch.Tensor,
        key: Key,
        place: Place,
        functions: Mapping[str, Measure] | None = None,
    ) -> None:
        """Measure a tensor, by some of the functions or by all; nothing is read back."""
        if functions is None:
            own = self.functions
            functions = {**own, **self.blocks} if self.blocks and is_floating(values) else own
        if not functions:
            return
        # No mode sees what is measured: not as a function that the model calls, nor to round it.
        with torch.no_grad(), disable_torch_function(), disable_current_modes():
            plain = values.detach()
            plain = plain if isinstance(factor, float) and factor == 1.0 else plain * factor
            for name, function in functions.items():
                found = _call(function, plain, name, key)
                if not isinstance(found, torch.Tensor) or found.is_complex():
                    raise ArgumentError(
                        f"The statistic {name!r} is not a real tensor.",
                        given=f"a {type(found).__name__} for {key}",
                        expected="a tensor on the device of its argument, such as x.abs().max()",
                    )
                # A view of the values would be read when these may have changed.
                self._waiting.append((key, place, name, found.detach().clone()))

    def flush(self) -> Measured:
        """Read all back, with one copy from each device."""
        waiting, self._waiting = self._waiting, []
        found: Measured = {}
        for device in {each[3].device for each in waiting}:
            here = [each for each in waiting if each[3].device == device]
            flat = torch.cat([each[3].to(torch.float64).reshape(-1) for each in here]).cpu().numpy()
            offset = 0
            for key, place, name, values in here:
                part = flat[offset : offset + values.numel()].reshape(tuple(values.shape))
                found.setdefault((key, place), {})[name] = part
                offset += values.numel()
        return found


def _call(function: Measure, values: torch.Tensor, name: str, key: Key) -> torch.Tensor:
    try:
        return function(values)
    except Exception as error:  # of somebody's own function, which stays as it is
        error.add_note(f"This was raised by the statistic {name!r}, of {key} [{key.direction}].")
        raise
