"""The numbers that arguments hold: which can be judged, and what is said of the rest."""

import torch

from pullback.conformance._arguments import Arguments, is_continuous
from pullback.errors import ArgumentError
from pullback.internal.torch import FakeTensor

__all__ = ["refuse_data", "without_nan"]


def refuse_data(arguments: Arguments) -> None:
    """Refuse tensors that have no strided numbers to move and compare.

    Raises:
        ArgumentError: a tensor is sparse, nested, quantised, fake or on the device meta.
    """
    for path, value in zip(arguments.paths, arguments.values, strict=True):
        kind = _unusual(value)
        if kind:
            raise ArgumentError(
                "An input cannot be checked.",
                given=f"{path} is {kind}",
                expected="strided tensors that hold numbers",
                mend="Check the Function on dense tensors, or wrap it in a function that makes "
                "such a tensor of dense ones.",
            )


def _unusual(value: torch.Tensor) -> str:
    if value.is_nested:
        return "a nested tensor"
    if value.layout != torch.strided:
        return f"a tensor with layout {value.layout}"
    if value.is_meta or value.device.type == "meta":
        return "a tensor without data, on the device meta"
    if isinstance(value, FakeTensor):
        return "a fake tensor"
    return "a quantised tensor" if value.is_quantized else ""


def without_nan(arguments: Arguments) -> tuple[Arguments, str]:
    """The arguments with other entries of the same tensor in place of NaN.

    A NaN makes every number that it reaches NaN, right or wrong: nothing is judged there.

    Arguments:
        arguments: as they were given.

    Returns:
        The arguments, and what was not judged; an empty text where they hold no NaN.

    Example:
        >>> found, said = without_nan(Arguments.of((torch.tensor([1.0, float("nan")]),)))
        >>> found.values[0].tolist(), said
        ([1.0, 1.0], 'not judged: 1 of 2 entries of args[0] are NaN, replaced by others of it')
    """
    values, said = [], []
    for k, (path, value) in enumerate(zip(arguments.paths, arguments.values, strict=True)):
        bad = value.isnan() if is_continuous(value) and k not in arguments.owned else None
        if bad is None or not bool(bad.any()):
            values.append(value)
            continue
        values.append(_filled(value, bad))
        said.append(f"{int(bad.sum())} of {value.numel()} entries of {path} are NaN")
    if not said:
        return arguments, ""
    return arguments.with_values(values), f"not judged: {', '.join(said)}, replaced by others of it"


def _filled(value: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
    whole = value[~bad]
    filled = value.clone()
    if not whole.numel():
        generator = torch.Generator().manual_seed(0)
        drawn = torch.rand(int(bad.sum()), generator=generator, dtype=torch.float64)
        filled[bad] = (0.5 + drawn).to(value)
        return filled
    count = int(bad.sum())
    filled[bad] = whole.repeat(-(-count // len(whole)))[:count]
    return filled
