"""Formats with scales beside torchao's: the same numbers, and how much of a signal is kept.

    python -m benchmarks.bench_formats

The peer is installed by hand: pip install --no-deps torchao==0.18.0.
"""

import csv
from pathlib import Path

import torch

from pullback.tracking.formats import SCALED_FORMATS, find_format, round_values, signal_to_noise

RESULTS = Path(__file__).parent / "results" / "formats.csv"


def peers(x):
    """What torchao makes of a tensor, by the name of the format."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    elements = {
        "MXFP8": torch.float8_e4m3fn,
        "MXFP8 E5M2": torch.float8_e5m2,
        "MXFP4": torch.float4_e2m1fn_x2,
    }
    for name, element in elements.items():
        yield name, MXTensor.to_mx(x, element, 32).dequantize(torch.float32)
    scale = per_tensor_amax_to_scale(x.abs().max())
    yield "NVFP4", NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)


def ratio(x, rounded):
    return (
        10 * torch.log10(x.double().square().sum() / (x - rounded).double().square().sum()).item()
    )


def main():
    torch.manual_seed(0)
    x = torch.randn(256, 512) * torch.logspace(-3, 3, 256)[:, None]
    theirs = dict(peers(x))
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["format", "sqnr_db", "torchao_sqnr_db", "numbers_that_differ"])
        for name in (known.name for known in SCALED_FORMATS):
            peer = theirs.get(name)
            row = [name, f"{signal_to_noise(x, name):.3f}", "", ""]
            if peer is not None:
                differ = int((round_values(x, find_format(name)) != peer).sum())
                row[2:] = [f"{ratio(x, peer):.3f}", differ]
            writer.writerow(row)
            print(*(str(cell).ljust(14) for cell in row))


if __name__ == "__main__":
    main()
