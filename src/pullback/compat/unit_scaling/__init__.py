"""The names of unit-scaling 0.3.5, over ours; every difference with its reason.

What is not listed gives the same results. Its modules ``utils``, ``scale``, ``formats``,
``transforms`` and ``analysis`` stand at the same paths under ``pullback.compat``, and all names
are here as well, but for ``simulate_format``: that is `pullback.tracking.simulate_format`, which
rounds every product, and ``transforms.simulate_format`` rounds linear layers and attention only.

Left out: ``unit_scale``, ``functional``, layers, parameters and optimisers are a way to scale a
model, not to look at one; unit_scaling's own ``unit_scale`` chains with the transforms here, in
either order. ``example_batch`` and ``visualiser`` download a text data set and need its packages;
``plot(track_scales(model).scales_graph())`` after a step with your own batch is what they do.

``ScaleTracker``
    Returns a view, not the tensor itself. Scales of half-precision tensors are taken in float32:
    there ``std`` is rounded to the dtype. One element or none gives NaN without torch's warning.
    Integers are refused by name. The numbers of a pair stay on the device until they are looked
    at. Every transform works; under vmap the scale is that of the whole batch.
``ScaleTrackingInterpreter``, ``analyse_module``
    Values are seen by tensor hooks, so that in-place operations on tracked values work; there
    they raise. ``analyse_module`` leaves ``.grad``, buffers and the random state alone; there
    they change. Without ``backward``, an output that is not a scalar gets normal numbers; there
    it raises. Batch normalisation and attention layers, which torch.fx cannot enter, stay one
    line; there they raise. ``autowrap_modules=None`` stands for math, einops if installed, and
    unit_scaling.functional if loaded: neither is a dependency. Functions passed as arguments of
    traced functions are refused by torch.fx.
``track_scales``
    A plain ``nn.Sequential`` root is tracked; there silently nothing is. After a graph break
    ``scales_graph`` joins the graphs of the last forward; there only the last graph survives.
    The caller's inputs are not told to require a gradient; there they are. Views and in-place
    operations keep their meaning, as values are not cloned; there a view changed in place leaves
    its base as it was. Nothing of torch.compile's caches is reset; there all of them are.
``Metrics``
    Computed in float32 or wider. An empty tensor gives NaN; there it raises.
``prune_selected_nodes``
    Returns a copy; there the graph it is given is changed. The other two already copy.
``prune_non_float_tensors``, ``prune_same_scale_tensors``
    A graph that was not tracked raises ``ArgumentError``; there ``RuntimeError`` or ``KeyError``.
    Nested arguments are pruned as well.
``graph_to_dataframe``
    Needs pandas (extra ``pandas``). Nodes without metrics are left out; there they raise.
``plot``
    Needs matplotlib (extra ``plot``) alone; there seaborn, pandas and datasets as well. The names
    of metrics in words work with arrows; there they raise.
``scale_fwd``, ``scale_bwd``
    The factor is kept in float32 or wider: 1e-9 does not become 0 in float16. ``scale_bwd``
    returns a view; there a copy. Integers are refused by name; there they turn into floats.
``FPFormat``
    ``nearest`` rounds ties to even; there toward zero. float16, bfloat16 and float64 work; there
    they crash. Tiny values are not flushed through float32 subnormals first. Stochastic rounding
    draws the same bits, so that equal seeds give equal results for float32 values in the range
    of normal numbers; a gradient's bits are drawn in forward, so that two backward passes agree.
    Bad arguments raise ``ArgumentError``; there ``AssertionError``.
``track_scales``, ``simulate_format``, ``compile``
    They work in graphs of torch.compile. A linear layer or attention that is in none (code that is
    disabled for it, torch.func, dispatch modes, too many recompilations, ``nn.MultiheadAttention``,
    a custom ``Function``, ``torch.cond``) is refused by ``simulate_format``; there it is left.
    Where nothing was traced, tracking and compiling are refused; there nothing happens. What a
    checkpoint in a graph runs again draws the random numbers that it drew, those of stochastic
    rounding among them; there others, so that the gradients are those of another dropout. They
    chain in any order: rounding comes before tracking or compiling. Tracking with compiling, a
    module a part of which is transformed already, and one with a function set as its ``forward``
    are refused by name; there one of the two is lost. torch.compile runs a transformed module as it
    is; there it drops the transforms.
``simulate_format``, ``simulate_fp8``
    ``rounding`` and ``srbits`` of the formats are kept; there they are lost on the way and
    rounding is always stochastic. Keyword arguments work. A plain ``nn.Linear`` root works.
    unit_scaling's own products are rounded as well if it is loaded.
"""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.compat.unit_scaling")

from pullback.compat.unit_scaling import analysis, formats, scale, transforms, utils
from pullback.compat.unit_scaling.analysis import graph_to_dataframe, plot
from pullback.compat.unit_scaling.formats import FPFormat, format_to_tuple, tuple_to_format
from pullback.compat.unit_scaling.scale import scale_bwd, scale_fwd
from pullback.compat.unit_scaling.transforms import (
    Metrics,
    compile,
    prune_non_float_tensors,
    prune_same_scale_tensors,
    prune_selected_nodes,
    simulate_fp8,
    track_scales,
)
from pullback.compat.unit_scaling.utils import (
    ScalePair,
    ScaleTracker,
    ScaleTrackingInterpreter,
    analyse_module,
)

__all__ = [
    "FPFormat",
    "Metrics",
    "ScalePair",
    "ScaleTracker",
    "ScaleTrackingInterpreter",
    "analyse_module",
    "analysis",
    "compile",
    "format_to_tuple",
    "formats",
    "graph_to_dataframe",
    "plot",
    "prune_non_float_tensors",
    "prune_same_scale_tensors",
    "prune_selected_nodes",
    "scale",
    "scale_bwd",
    "scale_fwd",
    "simulate_fp8",
    "track_scales",
    "transforms",
    "tuple_to_format",
    "utils",
]
