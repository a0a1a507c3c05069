"""torchao's own casts of every bfloat16 pattern, there and back.

torchao is not installed for the tests: it is large, and warns when it is imported. An environment
that has it (``pip install --no-deps torchao==0.18.0``) writes the digests of its casts anew:

    python -m tests.tracking.torchao_casts
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

DIGESTS = Path(__file__).with_suffix(".json")
Cast = Callable[[Tensor], Tensor]


def blocks() -> dict[str, Tensor]:
    """Every bfloat16 pattern in float32, 32 to a row: near ones, or ones of far magnitudes.

    Rows below 2**-100 are left out: torchao divides by 2**-126 there and multiplies by 2**-127, or
    keeps a scale from becoming so small.
    """
    numbers = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    found = {}
    for name, rows in (("near", numbers.view(-1, 32)), ("far", numbers.view(32, -1).mT)):
        kept = rows[~(rows.abs().amax(-1) < 2.0**-100)].contiguous()
        found[name] = kept
        found[f"{name}, finite"] = kept[kept.isfinite().all(-1)]
    return found


def digest(values: Tensor) -> str:
    """The beginning of the SHA-256 of float32 values; one NaN is as good as another."""
    plain = torch.where(values.isnan(), torch.nan, values.float() + 0.0).contiguous()
    return hashlib.sha256(plain.numpy().tobytes()).hexdigest()[:16]


def torchao_casts() -> dict[str, Cast]:
    """The casts by the names of our formats."""
    from torchao.prototype.mx_formats import constants, kernels
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.quantization import quant_primitives as affine

    def block(element: torch.dtype | str) -> Cast:
        def cast(x: Tensor) -> Tensor:
            scale, data = to_mx(x, element, 32)
            return to_dtype(data, scale, element, 32, torch.float32)

        return cast

    def nvfp4(x: Tensor) -> Tensor:
        scale = per_tensor_amax_to_scale(x.abs().max())
        return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)

    def scaled(element: torch.dtype, rows: int) -> Cast:
        def cast(x: Tensor) -> Tensor:
            scale = affine._choose_scale_float8(x, [rows or len(x), x.shape[-1]], element)
            data = affine._quantize_affine_float8(x, scale, element)
            return affine._dequantize_affine_float8(data, scale)

        return cast

    def whole(largest: int, size: tuple[int, int]) -> Cast:
        def cast(x: Tensor) -> Tensor:
            block = [size[0] or len(x), size[1]]
            dtype, limits = torch.int8, (-largest, largest)
            symmetric = affine.MappingType.SYMMETRIC_NO_CLIPPING_ERR
            scale, zero = affine.choose_qparams_affine(
                x, symmetric, block, dtype, *limits, scale_dtype=torch.float32
            )
            data = affine.quantize_affine(x, block, scale, zero, dtype, *limits)
            return affine.dequantize_affine(data, block, scale, zero, dtype, *limits)

        return cast

    return {
        "E2M1": lambda x: kernels.f4_unpacked_to_f32(kernels.f32_to_f4_unpacked(x)),
        "MXFP8": block(torch.float8_e4m3fn),
        "MXFP8 E5M2": block(torch.float8_e5m2),
        "MXFP6": block(constants.DTYPE_FP6_E2M3),
        "MXFP6 E3M2": block(constants.DTYPE_FP6_E3M2),
        "MXFP4": block(torch.float4_e2m1fn_x2),
        "NVFP4": nvfp4,
        "E4M3 tensor": scaled(torch.float8_e4m3fn, 0),
        "E5M2 tensor": scaled(torch.float8_e5m2, 0),
        "E4M3 channel": scaled(torch.float8_e4m3fn, 1),
        "int8 tensor": whole(127, (0, 32)),
        "int8": whole(127, (1, 32)),
        "int4": whole(7, (1, 32)),
    }


def main() -> None:
    """Write the digests."""
    found = {
        name: {rows: digest(cast(values)) for rows, values in blocks().items()}
        for name, cast in torchao_casts().items()
    }
    # torchao divides in float32, and so rounds to a tie what is none where a quotient is subnormal.
    found["E4M3 channel"] = {k: v for k, v in found["E4M3 channel"].items() if "far" not in k}
    found["E2M1"] = {k: v for k, v in found["E2M1"].items() if "finite" in k}  # of NaN it makes 1
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
