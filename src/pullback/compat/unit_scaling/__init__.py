"""The names of unit-scaling 0.3.5 for looking at a model, over ours.

Its modules ``utils``, ``scale``, ``formats``, ``transforms`` and ``analysis`` stand at the same
paths under ``pullback.compat``, and all names are here as well, but for ``simulate_format``: that
is `pullback.tracking.simulate_format`, which rounds every product, where
``transforms.simulate_format`` rounds linear layers and attention only.

Left out: what scales a model (``unit_scale``, ``functional``, layers, parameters, optimisers);
``example_batch`` and ``visualiser``, which download a text data set; ``graph_to_dataframe``, as
``node.meta["metrics"]`` of ``scales_graph().nodes`` has the numbers; the names of these in words
(``Metrics.full_names``), which `plot` has; ``format_to_tuple`` and ``tuple_to_format``, as a format
is a dataclass; and ``ScaleTrackingInterpreter``, which `analyse_module` does not need here.
unit_scaling's own ``unit_scale`` chains with the transforms here.

What is not listed gives the same results:

``ScaleTracker``
    Returns a view, not the tensor itself. Scales of half-precision tensors are taken in float32:
    there ``std`` is rounded to the dtype. One element or none gives NaN without torch's warning.
    Integers are refused by name. Every transform works; under vmap the scale is that of the whole
    batch.
``analyse_module``
    Values are seen by tensor hooks, so that in-place operations on tracked values work; there
    they raise. It leaves ``.grad``, buffers and the random state alone; there
    they change. Without ``backward``, an output that is not a scalar gets normal numbers; there
    it raises. Batch normalisation and attention layers, which torch.fx cannot enter, stay one
    line; there they raise. ``autowrap_modules=None`` stands for math, einops if installed, and
    unit_scaling.functional if loaded: neither is a dependency. Functions passed as arguments of
    traced functions are refused by torch.fx.
``track_scales``, ``simulate_format``, ``simulate_fp8``, ``compile``
    The forward is one graph of torch.compile: where that cannot trace it whole, its error is
    raised, and an activation checkpoint, a product inside of an operator and a forward of which
    nothing was traced are refused by name; there some of it is silently left out. Tracking or
    compiling comes last, and is refused elsewhere. A root from torch.nn works; there silently
    nothing is done. The caller's inputs are not told to require a gradient, views and in-place
    operations keep their meaning, and torch.compile's caches are left alone. ``rounding`` and
    ``srbits`` of formats are kept; there rounding is always stochastic.
``Metrics``
    Computed in float32 or wider. An empty tensor gives NaN; there it raises.
``prune_non_float_tensors``, ``prune_same_scale_tensors``, ``prune_selected_nodes``
    All return a copy. A graph that was not tracked raises ``ArgumentError``. Nested arguments are
    pruned as well.
``plot``
    Needs matplotlib (extra ``plot``) alone; there seaborn, pandas and datasets as well. It draws
    points, no arrows and no error bars, and has no arguments for these.
``scale_fwd``, ``scale_bwd``
    The factor is kept in float32 or wider: 1e-9 does not become 0 in float16. ``scale_bwd``
    returns a view; there a copy. Integers are refused by name; there they turn into floats.
``FPFormat``
    ``nearest`` rounds ties to even; there toward zero. float16, bfloat16 and float64 work; there
    they crash. Tiny values are not flushed through float32 subnormals first. Stochastic rounding
    draws the same bits, so that equal seeds give equal results for float32 values in the range
    of normal numbers; a gradient's bits are drawn in forward, so that two backward passes agree.
    Bad arguments raise ``ArgumentError``; there ``AssertionError``.
"""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.compat.unit_scaling")

from pullback.compat.unit_scaling import analysis, formats, scale, transforms, utils
from pullback.compat.unit_scaling.analysis import *
from pullback.compat.unit_scaling.formats import *
from pullback.compat.unit_scaling.scale import *
from pullback.compat.unit_scaling.transforms import compile as compile
from pullback.compat.unit_scaling.transforms import simulate_fp8 as simulate_fp8
from pullback.compat.unit_scaling.transforms._track import *
from pullback.compat.unit_scaling.utils import *

__all__ = sorted(
    [
        "analysis", "formats", "scale", "transforms", "utils", *analysis.__all__,
        *formats.__all__, *scale.__all__, *{*transforms.__all__} - {"simulate_format"},
        *utils.__all__,
    ]
)  # fmt: skip
