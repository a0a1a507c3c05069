"""Arguments that hold NaN: what can be judged without, and what is said of the rest."""

import torch

from pullback.conformance._arguments import Arguments

__all__ = ["without_nan"]


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
        bad = _bad(value) if k not in arguments.owned else None
        if bad is None:
            values.append(value)
            continue
        values.append(_filled(value, bad))
        said.append(f"{int(bad.sum())} of {value.numel()} entries of {path} are NaN")
    if not said:
        return arguments, ""
    return arguments.with_values(values), f"not judged: {', '.join(said)}, replaced by others of it"


def _bad(value: torch.Tensor) -> torch.Tensor | None:
    """Where a plain tensor is NaN; ``None`` where it is nowhere."""
    floating = value.is_floating_point() or value.is_complex()
    if value.layout is not torch.strided or value.is_meta or not floating or value.is_quantized:
        return None
    bad = value.isnan()
    return bad if bool(bad.any()) else None


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
