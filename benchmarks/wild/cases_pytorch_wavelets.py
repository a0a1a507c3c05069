"""pytorch_wavelets: wavelet filter banks."""

from benchmarks.wild._case import Published, randn

PACKAGE = "pytorch_wavelets"
_DWT = "pytorch_wavelets.dwt.lowlevel"
_ZERO = 0


def _filters(generator, number, shape):
    return tuple(randn(generator, *shape, grad=False) for _ in range(number))


CASES = [
    Published(f"{_DWT}:AFB1D", lambda g: (randn(g, 1, 2, 8), *_filters(g, 2, (1, 1, 4)), _ZERO)),
    Published(
        f"{_DWT}:SFB1D",
        lambda g: (randn(g, 1, 2, 5), randn(g, 1, 2, 5), *_filters(g, 2, (1, 1, 4)), _ZERO),
    ),
    Published(
        f"{_DWT}:AFB2D",
        lambda g: (randn(g, 1, 1, 6, 6), *_rows_and_columns(g), _ZERO),
    ),
    Published(
        f"{_DWT}:SFB2D",
        lambda g: (randn(g, 1, 1, 4, 4), randn(g, 1, 1, 3, 4, 4), *_rows_and_columns(g), _ZERO),
    ),
    Published(
        "pytorch_wavelets.scatternet.lowlevel:SmoothMagFn",
        lambda g: (randn(g, 3, 4), randn(g, 3, 4), 0.1),
    ),
]


def _rows_and_columns(generator):
    rows = _filters(generator, 2, (1, 1, 1, 4))
    columns = _filters(generator, 2, (1, 1, 4, 1))
    return (*rows, *columns)
