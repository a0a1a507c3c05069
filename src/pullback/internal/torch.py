"""All that pullback uses or changes inside torch, chosen for the torch that is installed.

No other file names a private part of torch; ``tests/internal/test_torch.py`` looks. Where torch
changed between the versions that we support, the choice is made here. A torch that is too old, or
that lacks one of these names, fails here, once, with a `TorchVersionError` that says which versions
work: what ran on from there would fail, or answer wrongly, far from the cause.

The one thing changed is `torch.autograd.Function.apply`: `answering` and `watch_apply` put a layer
over it, for those who must see or answer its calls. torch has no hook there: a mode of torch
functions does not see ``apply``, and `torch.autograd.graph.node_creation_hook` (torch 2.14.1) sees
a node, when the arguments are gone. The layer is put on once, when it is first needed, and stays:
whoever took it off would race with the threads that call it or put theirs on. Nobody else notices
it: not pickle, subclasses or Dynamo; while nobody answers it costs half a microsecond.

The recorder loads this file by its path into programs whose Python need not have pullback, so
it imports nothing but torch until it refuses. ``torch.__version__`` compares as versions of
`packaging` do, by a copy that torch ships.
"""

# Long: what is private of torch is in one file, whatever its length.

import contextlib
import functools
import importlib
import inspect
import operator
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch

__all__ = [
    "CHANGES_OF_VIEWS_ARE_LOST", "COMPILER", "FUSED_ATTENTION", "INTERMEDIATES_ARE_OUTPUTS",
    "LOGGERS", "METADATA", "MODULE_STATE", "OLDEST", "OPERATORS", "PRINT_OPTIONS",
    "STATE_DICT_HOOKS", "TESTED", "Answer", "BatchInterpreter", "BatchNormalisation",
    "CustomOpDef", "FakeTensor", "FakeTensorMode", "FunctionMode", "FunctionalTensor",
    "Observing", "OpOverload", "OpOverloadPacket", "TorchDispatchMode", "TransformType",
    "accumulate", "add_batch_dim", "add_legacy_batch_dim", "answer_by", "answering",
    "are_functorch_transforms_active", "author_of", "base_of", "called_from", "can_trace",
    "compile_in_one_thread", "constant_in_graph", "current_graph_task_id", "current_interpreter",
    "custom_function_call", "declare_ordered", "disable_current_modes", "disable_functorch",
    "disable_torch_function", "drops_writes", "end_what_a_graph_began", "forward_hooks_of",
    "forward_level", "free_symbols", "from_functional_tensor", "function_behind", "function_of",
    "fused_function", "get_interpreter_stack", "get_unwrapped", "graph_break", "graph_is_kept",
    "has_kernel", "has_own_fake", "has_saved_result", "hint_of", "innermost",
    "is_any_autocast_enabled",
    "is_batchedtensor", "is_exporting", "is_functional_tensor", "is_functorch_wrapped_tensor",
    "is_gradtrackingtensor", "is_known_to_export", "is_legacy_batchedtensor", "is_of_an_operator",
    "is_of_custom_operators", "is_raised_by_tracing", "is_recomputing", "is_stepping",
    "is_symbolic", "is_traced", "is_view", "is_whole", "is_zero_tensor", "lacks_gradient",
    "leave_function_mode", "legacy_batch_level", "len_torch_dispatch_stack", "make_subclass",
    "maybe_get_bdim", "maybe_get_level", "metadata_of", "mode_without_values",
    "nested_forward_mode", "never_compile", "next_sequence_number", "node_class", "operator_of",
    "overload_of", "parameters_of", "parts_of_compiler", "peek_interpreter_stack", "pytree",
    "recording", "remove_forward_hook", "remove_legacy_batch_dim", "restore_vmap", "rules_in",
    "run_eagerly", "run_once", "saved_tensors_are_hooked", "schema_of", "sequence_number",
    "set_deterministic", "set_forward_mode", "set_grad_mode", "storage_of",
    "temporarily_clear_interpreter_stack", "uncompiled", "unwrap_if_dead", "version_of",
    "versions_of", "watch_apply", "while_tracing", "whole_batch", "without_forward_hooks",
    "wrap_functional_tensor", "wrap_recomputation",
]  # fmt: skip

OLDEST = "2.7"
TESTED = "2.15"  # the newest that `make matrix` runs
_BEYOND = "3"
_FLAG_TELLS = torch.__version__ >= "2.9"
_EFFECTS_ARE_PUBLIC = torch.__version__ >= "2.10"
# There a Function that Dynamo traces also returns every tensor of its forward, and autograd gives
# the cotangent of a tensor that is returned twice to its last place.
INTERMEDIATES_ARE_OUTPUTS = "2.11" <= torch.__version__ < "2.12"
# There what Dynamo traces takes a view that a Function has changed in place for unchanged.
CHANGES_OF_VIEWS_ARE_LOST = torch.__version__ < "2.13"


def is_traced() -> bool:
    """Whether what torch computes is written down as a graph, as `torch.func.linearize` does."""
    return _dispatch_mode(_proxy) is not None


def is_symbolic() -> bool:
    """Whether what torch computes now has no values: a graph is written, or tensors are fake."""
    return any(_dispatch_mode(mode) is not None for mode in (_proxy, _functional, _fake_mode))


def drops_writes() -> bool:
    """Whether a change of a view is lost in the graph: torch.compile writes it down pure."""
    return is_traced() and _dispatch_mode(_functional) is None


def _refusal(what: str) -> Exception:
    given = f"torch {torch.__version__}"
    expected = f"torch {OLDEST} or newer, before {_BEYOND}; tested up to {TESTED}"
    try:
        from pullback.errors import TorchVersionError  # not at the top, since it need not be there
    except ImportError:
        return ImportError(f"{what} Given: {given}. Expected: {expected}.")
    mend = f"pip install 'torch>={OLDEST},<={TESTED}.*'"
    return TorchVersionError(what, given=given, expected=expected, mend=mend)


def _find(names: Iterable[str], *wanted: str) -> None:
    """Raise if a name that is read later, of an object that is not there yet, is missing."""
    for name in wanted:
        if name not in names:
            raise AttributeError(name)


def _codes_within(function: Any) -> list[types.CodeType]:
    """The code of the functions that a function makes."""
    return [each for each in function.__code__.co_consts if isinstance(each, types.CodeType)]


if not OLDEST <= torch.__version__ < _BEYOND:
    raise _refusal("This version of torch is not supported.")

try:
    _vmap, _interpreters, _autograd_function, _eager, _fake, _functional, _modes = (
        importlib.import_module(f"torch.{name}")
        for name in (
            "_functorch.vmap", "_functorch.pyfunctorch", "_functorch.autograd_function",
            "_functorch.eager_transforms", "_subclasses.fake_tensor",
            "_subclasses.functional_tensor", "utils._python_dispatch",
        )
    )  # fmt: skip
    _effects, _custom_ops, _registered, _registry, _checkpoint, pytree = (
        importlib.import_module(f"torch.{name}")
        for name in (
            "_library.effects" if _EFFECTS_ARE_PUBLIC else "_higher_order_ops.effects",
            "_library.custom_ops", "_library.autograd", "_library.simple_registry",
            "utils.checkpoint", "utils._pytree",
        )
    )  # fmt: skip
    _c: Any = torch._C
    _functorch: Any = torch._C._functorch
    _frames: Any = torch._C._dynamo.eval_frame
    _forward_ad: Any = torch.autograd.forward_ad

    # Transforms: the stack of interpreters, and the wrappers that they put around tensors.
    BatchInterpreter = _functorch.CVmapInterpreterPtr
    TransformType = _functorch.TransformType
    add_batch_dim = _functorch._add_batch_dim
    are_functorch_transforms_active: Callable[[], bool] = _c._are_functorch_transforms_active
    current_interpreter = _interpreters.retrieve_current_functorch_interpreter
    disable_functorch: Any = _c._DisableFuncTorch
    custom_function_call = _autograd_function.custom_function_call
    get_interpreter_stack = _functorch.get_interpreter_stack
    _set_fallback_warning_enabled = _functorch._set_vmap_fallback_warning_enabled
    get_unwrapped = _functorch.get_unwrapped
    PRINT_OPTIONS = importlib.import_module("torch._tensor_str").PRINT_OPTS
    is_batchedtensor = _functorch.is_batchedtensor
    is_functorch_wrapped_tensor = _functorch.is_functorch_wrapped_tensor
    is_gradtrackingtensor = _functorch.is_gradtrackingtensor
    is_legacy_batchedtensor = _functorch.is_legacy_batchedtensor
    maybe_get_bdim = _functorch.maybe_get_bdim
    maybe_get_level = _functorch.maybe_get_level
    peek_interpreter_stack = _functorch.peek_interpreter_stack
    restore_vmap = _vmap.restore_vmap
    temporarily_clear_interpreter_stack = _interpreters.temporarily_clear_interpreter_stack
    unwrap_if_dead = _functorch.unwrap_if_dead

    # Functional tensors: what `functionalize` puts in the place of changes in place.
    from_functional_tensor = torch._from_functional_tensor
    is_functional_tensor = torch._is_functional_tensor
    wrap_functional_tensor = _functorch._wrap_functional_tensor

    # Tensors.
    make_subclass: Callable[..., torch.Tensor] = torch.Tensor._make_subclass
    is_view: Callable[[torch.Tensor], bool] = torch.Tensor._is_view
    is_zero_tensor: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor
    # The tensor that a view was made of; ``None`` for what is no view.
    base_of: Callable[[torch.Tensor], torch.Tensor | None] = operator.attrgetter("_base")
    _find(dir(torch.Tensor), "_version", "_base")
    _find(dir(torch.UntypedStorage), "_cdata")

    # Modes, and tensors without data.
    FakeTensor: Any = _fake.FakeTensor
    FakeTensorMode: Any = _fake.FakeTensorMode
    _find(FakeTensorMode.__init__.__code__.co_names, "_allow_unsafe_data_ptr_access")
    FunctionalTensor: Any = _functional.FunctionalTensor
    TorchDispatchMode: Any = _modes.TorchDispatchMode
    _TorchFunctionMode: Any = importlib.import_module("torch.overrides").TorchFunctionMode
    disable_current_modes = _modes._disable_current_modes
    disable_torch_function: Any = _c.DisableTorchFunction
    _find(dir(_c), "_len_torch_function_stack", "_pop_torch_function_stack")
    _find(dir(_c), "_push_on_torch_function_stack", "_ForceDispatchKeyGuard")
    _find(dir(_c), "_dispatch_tls_local_include_set", "_dispatch_tls_local_exclude_set")
    is_any_autocast_enabled: Callable[[], bool] = _c._is_any_autocast_enabled
    len_torch_dispatch_stack: Callable[[], int] = _c._len_torch_dispatch_stack
    _proxy: Any = _c._TorchDispatchModeKey.PROXY
    _functional: Any = _c._TorchDispatchModeKey.FUNCTIONAL
    _fake_mode: Any = _c._TorchDispatchModeKey.FAKE
    _dispatch_mode: Callable[[Any], Any] = _c._get_dispatch_mode
    set_grad_mode = _c._set_grad_enabled  # as a mode of torch functions sees it called

    # As `torch.use_deterministic_algorithms`, which imports the compiler to tell it too.
    set_deterministic: Any = _c._set_deterministic_algorithms

    # Modules, and the functions that run a whole layer in one call.
    fused_function: Callable[[str], Any] = functools.partial(getattr, torch._VF)  # as ``"lstm"``
    FUSED_ATTENTION: Any = (
        torch._transformer_encoder_layer_fwd,
        torch._native_multi_head_attention,
    )
    BatchNormalisation: Any = torch.nn.modules.batchnorm._NormBase
    # Hooks on state dicts run when weights are loaded or saved, never in forward or backward; they
    # hold bound methods of their owner and would make almost every module unrecordable.
    STATE_DICT_HOOKS = frozenset({
        "_state_dict_hooks", "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
    })  # fmt: skip
    _hooks = "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called"
    _find(vars(torch.nn.Module()), *STATE_DICT_HOOKS, *_hooks)

    # The engine of autograd.
    METADATA = "_input_metadata"
    # Shape, dtype and device of each gradient that a node takes.
    metadata_of: Callable[[Any], tuple[Any, ...]] = operator.attrgetter(METADATA)
    _SEQUENCE = (
        "_sequence_nr"  # of a node among those that a thread has made: the later, the larger
    )
    _find(dir(_c._FunctionBase), METADATA, _SEQUENCE)
    _find(dir(torch.autograd.Function), "_backward_cls")
    graph_is_kept: Callable[[], bool] = _c._autograd._get_current_graph_task_keep_graph
    _allow_saved_hooks: Callable[[], None] = _c._autograd._saved_tensors_hooks_enable
    _saved_hooks = getattr(_c._autograd, "_top_saved_tensors_default_hooks", None)  # 2.7: none
    current_graph_task_id: Callable[[], int] = _c._current_graph_task_id
    sequence_number: Callable[[Any], int] = operator.methodcaller(_SEQUENCE)
    next_sequence_number: Callable[[], int] = _c._autograd._get_sequence_nr
    _Region: Any = _checkpoint._CachingTorchDispatchMode
    _find(_Region.__init__.__code__.co_names, "policy_fn")
    _find(dir(_modes), "_get_current_dispatch_mode")
    _Frame: Any = _checkpoint._CheckpointFrame
    _region: Any = _checkpoint._checkpoint_without_reentrant_generator
    _RECOMPUTATIONS: Any = (
        _checkpoint.CheckpointFunction.backward.__code__,
        *_codes_within(_region),
    )
    # What every optimiser's step is wrapped in, which calls its hooks.
    _STEPS = _codes_within(torch.optim.Optimizer.profile_hook_step)
    set_forward_mode: Callable[[bool], Any] = _forward_ad._set_fwd_grad_enabled
    _find(dir(_forward_ad), "_current_level")
    _find(dir(_eager), "JVP_NESTING")
    _enter_level, _exit_level = _c._enter_dual_level, _c._exit_dual_level

    # Operators.
    OPERATORS: Any = _custom_ops.OPDEFS  # by name, those of `torch.library.custom_op`
    CustomOpDef: Any = _custom_ops.CustomOpDef
    OpOverload: Any = torch._ops.OpOverload
    OpOverloadPacket: Any = torch._ops.OpOverloadPacket
    schema_of: Callable[[Any], Any] = operator.attrgetter("_schema")  # of an overload
    # What a `torch.library.custom_op` defines.
    overload_of: Callable[[Any], Any] = operator.attrgetter("_opoverload")
    has_kernel: Callable[[str, str], bool] = _c._dispatch_has_kernel_for_dispatch_key
    _find(OpOverload.__init__.__code__.co_names, "_schema")
    _find(CustomOpDef.__init__.__code__.co_names, "_init_fn")
    _find(_registered.Info.__annotations__, "_backward_fn", "_setup_context_fn")

    _after_views = _c._after_ADInplaceOrView_keyset

    # The compiler.
    _Strategy = _frames._FrameExecStrategy
    _SKIP, _DEFAULT = _frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT
    _set_strategy = _frames.set_code_exec_strategy
    if _FLAG_TELLS:
        _find(vars(torch.compiler), "_is_exporting_flag")
    _ORDERED = (_effects.EffectType if _EFFECTS_ARE_PUBLIC else _effects._EffectType).ORDERED
except (AttributeError, ImportError) as error:
    raise _refusal(f"This torch lacks what pullback needs of it: {error}.") from error


class Observing(TorchDispatchMode):
    """A mode that looks on: what runs under it runs as it does without.

    An operator of higher order (`scan`, `cond`) reaches it as a whole, without schema or packet.
    Under any other mode torch refuses these; and it takes what it was to compile for code never to
    be compiled, which lasts as long as the process and breaks later calls.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether what is compiled is compiled and run as without the mode."""
        return True


class FunctionMode(_TorchFunctionMode):
    """A mode of torch functions that Dynamo traces with what it compiles, and never by itself.

    Where it ends a graph within ``__torch_function__``, Dynamo (2.13) compiles that as a frame of
    its own for one function of torch, and runs it for another: an exponential becomes a sine.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__torch_function__" in vars(cls):
            never_compile(vars(cls)["__torch_function__"], callees=True)


def version_of(tensor: torch.Tensor | None) -> int:
    """How often a tensor was changed in place; -1 where there is none, and in inference mode."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def versions_of(tensors: Iterable[torch.Tensor | None]) -> list[int]:
    """How often each tensor was changed in place."""
    try:
        return [t._version for t in tensors]  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):  # one is None, or of inference mode
        return [*map(version_of, tensors)]


def storage_of(tensor: torch.Tensor) -> int:
    """What is the same number for two tensors if they lie in one storage, without data too."""
    with disable_torch_function():  # nothing to the modes around
        return tensor.untyped_storage()._cdata


def function_of(node: object) -> Any:
    """The Function that made a node of the graph of autograd; ``None`` for torch's own nodes."""
    return getattr(node, "_forward_cls", None)


def answer_by(ctx: object, function: type) -> None:
    """Let the methods of another Function answer where the node of a context is asked."""
    object.__setattr__(ctx, "_forward_cls", function)


def has_saved_result(node: Any) -> bool:
    """Whether a node of the graph has saved what its function gave, as that of exp has."""
    return hasattr(node, "_saved_result")


def node_class(function: type) -> Any:
    """The class of the nodes that torch makes for a Function."""
    return getattr(function, "_backward_cls", None)


def parameters_of(module: torch.nn.Module) -> Iterable[torch.Tensor | None]:
    """What stands in the place of a module's own parameters; `functional_call` changes it."""
    return module._parameters.values()


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The model that torch.compile has wrapped, or the model itself."""
    return dict(model.named_children()).get("_orig_mod", model)


def remove_forward_hook(module: torch.nn.Module, hook: object) -> None:
    """Take a forward hook off a module, without the handle that its registration gave."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for number in [number for number, other in hooks.items() if other is hook]:
            del hooks[number]
            module._forward_hooks_always_called.pop(number, None)
            module._forward_hooks_with_kwargs.pop(number, None)
            module._forward_pre_hooks_with_kwargs.pop(number, None)


def forward_hooks_of(module: torch.nn.Module) -> list[Any]:
    """The hooks before and after a module's forward."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def without_forward_hooks(
    state: dict[str, Any], is_left_out: Callable[[object], bool]
) -> dict[str, Any]:
    """The attributes of a module, but without some of its hooks before and after forward."""
    plain = dict(state)
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        left_out = {number for number, hook in state[kind].items() if is_left_out(hook)}
        for name in (kind, f"{kind}_with_kwargs", f"{kind}_always_called"):
            if name in state:
                kept = ((key, value) for key, value in state[name].items() if key not in left_out)
                plain[name] = type(state[name])(kept)
    return plain


def accumulate(parts: Sequence[tuple[torch.Tensor, torch.Tensor]], create_graph: bool) -> None:
    """Add gradients to the ``.grad`` of leaves whose own hooks have seen them already.

    Every other hook runs: those of the leaf's node, and those after accumulation.
    """
    leaves, gradients = [leaf for leaf, _ in parts], [gradient for _, gradient in parts]
    with _leaves_lock:  # of two threads one would keep what the other has put in a hook's place
        each_once = dict.fromkeys(leaves)
        kept = [(own, dict(own)) for leaf in each_once if (own := leaf._backward_hooks)]
        for own, hooks in kept:
            own.update((key, _elsewhere(hook)) for key, hook in hooks.items())
        try:
            torch.autograd.backward(leaves, gradients, create_graph=create_graph)
        finally:
            for own, hooks in kept:  # but for those that a hook has removed meanwhile
                own.update((key, hook) for key, hook in hooks.items() if key in own)


_leaves_lock = threading.RLock()


def _elsewhere(hook: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """A hook that is left out in this thread; others may run a graph meanwhile.

    Of a leaf on another device it is left out in all: the thread of the device runs what is here.
    """
    here = threading.get_ident()

    def call(gradient: torch.Tensor) -> Any:
        mine = threading.get_ident() == here or gradient.device.type != "cpu"
        return None if mine else hook(gradient)

    return call


def leave_function_mode(mode: Any) -> None:
    """Leave a mode of torch functions, which need not be the one that was entered last.

    Its own ``__exit__`` takes off the last one, whichever that is.
    """
    above = []
    while _c._len_torch_function_stack():
        last = _c._pop_torch_function_stack()
        if last is mode:
            break
        above.append(last)
    for other in reversed(above):
        _c._push_on_torch_function_stack(other)


def function_behind(op: object) -> Any:
    """The function that `torch.library.custom_op` decorated; ``None`` for other operators."""
    return getattr(op, "_init_fn", None)


def is_of_an_operator(cls: type) -> bool:
    """Whether torch made a Function of the rules of an operator of `torch.library`."""
    return cls.__module__ == _registered.__name__


def operator_of(cls: type) -> Any:
    """The `torch.library.custom_op` whose autograd torch made a Function for, or ``None``.

    An operator that takes lists of tensors, or that a `torch.library.Library` defines, is none:
    no name in a module leads back to it.
    """
    if not is_of_an_operator(cls):
        return None
    forward: Any = vars(cls).get("forward")
    for cell in getattr(getattr(forward, "__func__", forward), "__closure__", None) or ():
        if isinstance(cell.cell_contents, OpOverload):
            return OPERATORS.get(cell.cell_contents._schema.name)
    return None


def rules_in(frame: types.FrameType) -> tuple[Any, Any] | None:
    """The backward and the ``setup_context`` of an operator, where its autograd runs."""
    info = frame.f_locals.get("info") if frame.f_code.co_filename == _registered.__file__ else None
    return None if info is None else (info._backward_fn, info._setup_context_fn)


def lacks_gradient(op: Any) -> bool:
    """Whether no gradient was registered for an operator that is not torch's own."""
    if isinstance(op, OpOverloadPacket):
        return any(lacks_gradient(getattr(op, name)) for name in op.overloads())
    if not isinstance(op, OpOverload) or op.namespace in ("aten", "prims", "prim"):
        return False
    definition = OPERATORS.get(schema_of(op).name)
    if definition is not None:
        return definition._backward_fn is None
    keys = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
    return not any(has_kernel(op.name(), key) for key in keys)


def has_own_fake(op: Any) -> bool:
    """Whether its author says which shapes an operator that is not torch's own gives."""
    if not isinstance(op, OpOverload) or op.namespace in ("aten", "prims", "prim"):
        return False
    if _registry.singleton.find(schema_of(op).name).fake_impl.kernel is not None:
        definition = OPERATORS.get(schema_of(op).name)  # whose stand-in refuses where none is given
        return definition is None or definition._abstract_fn is not None
    return has_kernel(op.name(), "Meta")


def is_of_custom_operators(module: str) -> bool:
    """Whether a module, by its name, is one of those that hold operators that are not torch's."""
    return module.startswith("torch._ops.") and module != "torch._ops.aten"


def forward_level() -> int:
    """The level of forward-mode differentiation that is entered, -1 outside of any."""
    return _forward_ad._current_level


def legacy_batch_level() -> int:
    """How many batches of ``is_grads_batched`` are open, one within the other."""
    level = torch._C._vmapmode_increment_nesting()
    torch._C._vmapmode_decrement_nesting()
    return level - 1


def add_legacy_batch_dim(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """The batch of a level whose items stand along the first dimension of a tensor."""
    return torch._add_batch_dim(tensor, 0, level)


def remove_legacy_batch_dim(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """The items of a batch, along the first dimension; one item where it is none of this level."""
    return torch._remove_batch_dim(tensor, level, 1, 0)


def saved_tensors_are_hooked() -> bool:
    """Whether hooks pack what is saved now; no where torch (2.7) cannot tell."""
    return _saved_hooks is not None and _saved_hooks(True) is not None


def called_from(code: types.CodeType) -> bool:
    """Whether one of the frames that wait for the caller runs this code."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def is_stepping(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the caller runs within the step of an optimiser; one that raised has ended."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _STEPS and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


def wrap_recomputation(
    key: object, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Let what activation checkpointing will run again for its innermost region be wrapped.

    Non-reentrant checkpointing keeps what to run on a frame that its hooks close over; there is
    no public way to it from inside of the region. Each who asks, by ``key``, wraps a region once.
    """
    for frame in _innermost_regions():
        known = getattr(frame.recompute_fn, "wrapped_by", ()) if isinstance(frame, _Frame) else None
        if known is not None and key not in known:
            wrapped: Any = wrap(frame.recompute_fn)
            wrapped.wrapped_by = (*known, key)
            frame.recompute_fn = wrapped


def is_recomputing() -> bool:
    """Whether activation checkpointing computes again what it had computed before."""
    return any(map(called_from, _RECOMPUTATIONS))


def _innermost_regions() -> Iterator[Any]:
    """What the hooks of the innermost checkpointed region close over, its frame among it."""
    if _saved_hooks is not None:
        hooks = _saved_hooks(True)
        for cell in getattr(hooks[0], "__closure__", None) or () if hooks else ():
            yield cell.cell_contents
        return
    caller = sys._getframe(1)  # torch 2.7 does not tell its hooks; a generator runs the region
    while caller is not None:
        code, region = caller.f_code, caller.f_locals.get("gen")
        if code.co_name == "checkpoint" and code.co_filename == _checkpoint.__file__ and region:
            yield region.gi_frame.f_locals.get("new_frame")
            return
        caller = caller.f_back


def is_exporting() -> bool:
    """Whether a program is being exported.

    Before torch 2.10, Dynamo takes ``torch.compiler.is_exporting()`` for true in all that it
    traces. A flag tells from 2.9 on; before, an export cannot be told from a compilation, and the
    answer is yes for both.
    """
    return torch.compiler._is_exporting_flag if _FLAG_TELLS else torch.compiler.is_exporting()


def is_known_to_export() -> bool:
    """The same, with no for an answer where it cannot be told from a compilation."""
    return _FLAG_TELLS and torch.compiler._is_exporting_flag


def graph_break(message: str) -> None:
    """End the graph that Dynamo traces, with a message: no exception of ours passes it."""
    torch._dynamo.graph_break(msg=message)


COMPILER = "torch._dynamo"  # the module that `torch.compile` imports
# Where a module keeps its parameters and buffers.
MODULE_STATE = ("_parameters", "_buffers")
LOGGERS = (COMPILER, "torch._functorch", "torch._subclasses")  # those that compiling logs to


def compile_in_one_thread() -> None:
    """Let inductor start neither threads nor processes in this process."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    settings: Any = sys.modules.get("torch._inductor.config")
    if settings is not None:
        settings.compile_threads = 1


def parts_of_compiler() -> Iterator[str]:
    """Import what the first graph imports, in parts of a second at most, each of which is told."""
    for name in ("_functorch.aot_autograd", "_inductor.decomposition", "_inductor.select_algorithm",
                 "_inductor.pattern_matcher"):  # fmt: skip
        with contextlib.suppress(ImportError):
            importlib.import_module(f"torch.{name}")
        yield name


def is_raised_by_tracing(error: Exception) -> bool:
    """Whether an error is one by which the tracing of a graph asks for something, or ends."""
    return type(error).__module__.startswith((COMPILER, "torch.fx"))


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """What is below all wrappers of `torch.func`."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def whole_batch(tensor: torch.Tensor) -> torch.Tensor:
    """What is below all wrappers of `torch.func` and of ``is_grads_batched``, as it lies there."""
    tensor = innermost(tensor)
    level = legacy_batch_level() if is_legacy_batchedtensor(tensor) else 0
    while is_legacy_batchedtensor(tensor):
        tensor, level = remove_legacy_batch_dim(tensor, level), level - 1
    return tensor


def end_what_a_graph_began() -> None:
    """End the level of forward mode that a graph began, and let hooks see saved tensors again.

    An error that ends a graph leaves these two as they are. Torch ends all else, and would refuse
    every later level, and checkpointing.
    """
    if _forward_ad._current_level < 0:
        try:
            level = _enter_level()
        except RuntimeError:  # there is one
            level = 0
        _exit_level(level=level)
    _allow_saved_hooks()


def mode_without_values(mode: Any) -> Any:
    """A mode whose tensors have no values, with the symbols of another such mode.

    By default the pointer to the data of such a tensor is null, and who follows it kills Python.
    """
    other = FakeTensorMode(allow_non_fake_inputs=True, shape_env=mode.shape_env)
    other._allow_unsafe_data_ptr_access = False
    return other


@contextlib.contextmanager
def free_symbols(mode: Any) -> Iterator[None]:
    """Let code on tensors without values read numbers of them that stay inside of it."""
    shapes = mode.shape_env
    if shapes is None:
        yield
        return
    # torch would warn of a slow batch while the error that ends the graph is under way, and fail
    # in that (SystemError). It does not tell whether the warning is on, as it is by default.
    _set_fallback_warning_enabled(False)
    try:
        # A rule that is compiled itself runs uncompiled: before 2.11 torch cannot compile it here.
        nested = _dynamo().config.patch(error_on_nested_fx_trace=False)
        eager = torch.compiler.set_stance("force_eager")
        with shapes.ignore_fresh_unbacked_symbols(), nested, eager:
            yield
    finally:
        _set_fallback_warning_enabled(True)


def constant_in_graph(function: types.FunctionType) -> Any:
    """Let Dynamo call a function when it traces a call of it, and take the result for a constant.

    As `torch.compiler.assume_constant_result`, which imports Dynamo.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


def while_tracing(function: Callable[[Any], None]) -> None:
    """Let Dynamo call a function when it traces this call, with all that it knows."""
    torch._dynamo.comptime.comptime(function)


@functools.cache
def _dynamo() -> Any:
    """Dynamo, of which a name that is missing is told when somebody compiles for the first time."""
    found: Any = torch._dynamo
    try:
        _ = found.utils.get_chromium_event_logger().tls, found.exc.BackendCompilerFailed
        _ = found.config.suppress_errors, found.config.error_on_nested_fx_trace
        _ = found.graph_break, found.comptime.comptime
    except AttributeError as error:
        raise _refusal(f"This torch lacks what pullback needs of it: {error}.") from error
    return found


def can_trace(function: Callable[..., Any], examples: Iterable[Any]) -> bool:
    """Whether Dynamo makes one graph of a function on such arguments; nothing is run."""
    dynamo = _dynamo()
    try:
        with dynamo.config.patch(suppress_errors=False), _own_log(), _own_modes():
            torch.compile(function, fullgraph=True, backend=_stop)(*examples)
    except dynamo.exc.BackendCompilerFailed as error:
        return isinstance(error.inner_exception, _GraphIsMade)
    except Exception:  # of any kind: what can be traced only ends in the backend
        return False
    return True  # nothing was computed, so that there was no graph


@contextlib.contextmanager
def _own_log() -> Iterator[None]:
    """Give a compilation within another a log of events; it would empty that of the outer one."""
    kept = vars(_dynamo().utils.get_chromium_event_logger().tls)  # of this thread
    before = dict(kept)
    kept.clear()
    try:
        yield
    finally:
        kept.clear()
        kept.update(before)


@contextlib.contextmanager
def _own_modes() -> Iterator[None]:
    """Keep the modes that a compilation has set aside; one within it would forget them."""
    kept = _dynamo().variables.torch_function.torch_function_mode_stack_state_mgr
    before = kept.stack
    try:
        yield
    finally:
        kept.stack = before


class _GraphIsMade(Exception):
    """Ends a compilation before anything runs."""


def _stop(graph: Any, inputs: Any) -> NoReturn:
    raise _GraphIsMade


def is_whole(context: Any) -> bool:
    """Whether a graph must not end (``fullgraph=True``), given what `while_tracing` hands out."""
    translator = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    root = translator.output.root_tx
    return root.one_graph or getattr(translator, "error_on_graph_break", False)


def hint_of(size: Any) -> Any:
    """A number that Dynamo traces with, or the one that it stands for in a symbol."""
    return size.node.hint if isinstance(size, (torch.SymInt, torch.SymFloat)) else size


def recording() -> AbstractContextManager[Any]:
    """Let autograd and transforms work within an operator, which torch runs below them.

    What dispatches to what is then as in a thread that has just begun.
    """
    return _c._ForceDispatchKeyGuard(*_first_state())


@contextlib.contextmanager
def nested_forward_mode() -> Iterator[None]:
    """Let forward mode in an operator know of the level that compiled code around it has entered.

    A graph enters a level without `torch.autograd.forward_ad` or `torch.func.jvp` knowing.
    """
    transforms: Any = _eager
    before = transforms.JVP_NESTING, _forward_ad._current_level
    try:
        _exit_level(level=_enter_level())
    except RuntimeError:  # there is one
        transforms.JVP_NESTING, _forward_ad._current_level = max(1, before[0]), 0
    try:
        yield
    finally:
        transforms.JVP_NESTING, _forward_ad._current_level = before


@functools.cache
def _first_state() -> tuple[Any, Any]:
    found: list[tuple[Any, Any]] = []
    keys = _c._dispatch_tls_local_include_set, _c._dispatch_tls_local_exclude_set
    thread = threading.Thread(target=lambda: found.append((keys[0](), keys[1]())))
    thread.start()
    thread.join()
    return found[0]


def author_of(function: Any) -> Any:
    """The function that an author wrote: below decorators that say so, a script or an operator."""
    defined = OPERATORS.get(getattr(function, "_qualified_op_name", None), function)
    function = defined._init_fn if isinstance(defined, CustomOpDef) else inspect.unwrap(function)
    return getattr(function, "_torchdynamo_inline", function)


def never_compile(function: types.FunctionType, *, callees: bool = False) -> None:
    """Let Dynamo trace a function as a piece of something, and never compile it by itself.

    The functions that it calls may be compiled by themselves if ``callees`` says so.
    """
    _set_strategy(function.__code__, _Strategy(_SKIP, _DEFAULT if callees else _SKIP))


def run_eagerly(function: types.FunctionType, reason: str) -> None:
    """Let Dynamo end its graph before a function, and compile neither it nor what it calls.

    The error under ``fullgraph=True`` tells the reason.
    """
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
    never_compile(function)


def declare_ordered(operator: Any) -> None:
    """Declare that an operator of `torch.library` has effects; compiled code keeps their order."""
    if _EFFECTS_ARE_PUBLIC:
        operator.register_effect(_ORDERED)
    else:
        _effects._register_effectful_op(operator._opoverload, _ORDERED)


def run_once(library: torch.library.Library, operator: Any) -> None:
    """Let compiled activation checkpointing keep what an operator gives, and not run it again.

    One with effects would run in the backward pass with the forward's token, which torch (2.13)
    saves for it, and cannot: a token is no tensor. What is to run again is marked by the policy of
    a mode; in older versions by what each node of the graph is copied from.
    """

    def kernel(keys: Any, *given: Any) -> Any:
        with _kept_by_checkpoints() if is_symbolic() else contextlib.nullcontext():
            return operator._opoverload.redispatch(keys & _after_views, *given)

    # No mode has seen the call there yet, and an operator without views has nothing else to do.
    library.impl(operator._opoverload, kernel, "ADInplaceOrView", with_keyset=True)


@contextlib.contextmanager
def _kept_by_checkpoints() -> Iterator[None]:
    mode, meta = _modes._get_current_dispatch_mode(), torch.fx.traceback.get_current_meta()
    policy = mode.policy_fn if isinstance(mode, _Region) else None
    mark = {"recompute": meta.pop("recompute")} if "recompute" in meta else {}
    if policy is not None:
        mode.policy_fn = lambda *_, **__: _checkpoint.CheckpointPolicy.MUST_SAVE
    try:
        yield
    finally:
        meta.update(mark)
        if policy is not None:
            mode.policy_fn = policy


Answer = Callable[[Callable[..., Any], type, tuple[Any, ...], dict[str, Any]], Any]
"""Answers ``cls.apply(*args, **kwargs)``, given ``(call, cls, args, kwargs)``.

``call(cls, *args, **kwargs)`` goes on to the next answer, and at last to torch.
"""

_Function: Any = torch.autograd.Function
# Under this name a layer lies in the module of the class that it covers. The recorder's copy of
# this file finds it there too; so does another version of pullback, if it means the same by it.
_MARK = "_pullback_layer_1"
_installing = threading.Lock()


class _Thread(threading.local):
    answers: tuple[Answer, ...] = ()  # in a thread that has set none


class _Layer:
    """Who answers the calls of one class's ``apply``: the answers of this thread, then of all."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original
        self.thread = _Thread()
        self.everywhere: tuple[Answer, ...] = ()
        self.lock = threading.Lock()

    def __call__(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answers = self.thread.answers + self.everywhere
        if not answers:
            return self.original(cls, *args, **kwargs)
        return _ask(answers, self.original, cls, args, kwargs)


never_compile(_Layer.__call__, callees=True)


@functools.cache
def _layer(base: Any) -> _Layer:
    """Return the layer over the ``apply`` of a class that defines one, once put on."""
    scope = vars(sys.modules[base.__module__])
    if _MARK not in scope:
        with _installing:
            if _MARK not in scope:  # another thread may have come first
                _cover(base, scope)
    return scope[_MARK]


def _cover(base: Any, scope: dict[str, Any]) -> None:
    """Put a layer over ``base.apply`` so that neither Dynamo nor old references to it notice.

    Modules write ``name = F.apply``, and Dynamo compiles a call of that name if it equals what
    ``F.apply`` is now. So where torch has ``apply`` in Python (before 2.14), the function stays and
    its code is exchanged, in one step. Where it is in C++, the attribute is replaced; a name that
    was given before does not pass through the layer there.

    The new code goes by the file of the class, for Dynamo knows by it the code of torch that is
    never compiled by itself.
    """
    original = vars(base)["apply"]
    function: Any = getattr(original, "__func__", None)
    exchange = function is not None and function.__code__.co_freevars == _ENTRY.co_freevars
    code = _ENTRY.replace(
        co_filename=scope["__file__"],
        co_firstlineno=1 + function.__code__.co_firstlineno if exchange else 0,
        co_qualname=f"{base.__qualname__}.apply",
    )
    if exchange:
        copy = types.FunctionType(function.__code__, scope, "apply", None, function.__closure__)
        scope[_MARK] = _Layer(copy)
        function.__code__ = code
        return
    call = original if function is None else function
    scope[_MARK] = _Layer(call)
    entry = types.FunctionType(code, scope, "apply", None, (types.CellType(base),))
    entry.__doc__ = call.__doc__
    base.apply = classmethod(entry)


def _entry() -> types.CodeType:
    __class__ = object

    def apply(cls, *args, **kwargs):
        __class__  # noqa: B018 - torch's `apply` closes over it, so what takes its place must
        return _pullback_layer_1(cls, args, kwargs)  # type: ignore[name-defined]  # noqa: F821 - see _MARK

    return apply.__code__


_ENTRY = _entry()


def _ask(
    answers: tuple[Answer, ...],
    original: Callable[..., Any],
    cls: type,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    first, rest = answers[0], answers[1:]
    if not rest:
        return first(original, cls, args, kwargs)

    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        return _ask(rest, original, cls, args, kwargs)

    return first(call, cls, args, kwargs)


never_compile(_ask, callees=True)  # type: ignore[arg-type]


class answering:  # noqa: N801 - a context, as those of contextlib, at a third of their cost
    """Let ``answer`` answer the calls of `torch.autograd.Function.apply` that this thread makes.

    It comes before those that were there, and before those of all threads.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __enter__(self) -> None:
        self._thread = _layer(_Function).thread
        self._before = self._thread.answers
        self._thread.answers = (self._answer, *self._before)

    def __exit__(self, *_: object) -> None:
        self._thread.answers = self._before


def watch_apply(base: Any, answer: Answer) -> Callable[[], None]:
    """Let ``answer`` answer the calls of ``base.apply`` that any thread makes.

    Arguments:
        base: `torch.autograd.Function`, or a base class that defines an ``apply`` of its own.
        answer: called from every thread.

    Returns:
        What ends it. Calls that have begun are answered to their end.
    """
    layer = _layer(base)
    entry = functools.partial(answer)  # not equal to the entry of another call
    with layer.lock:
        layer.everywhere = (*layer.everywhere, entry)

    def end() -> None:
        with layer.lock:
            layer.everywhere = tuple(a for a in layer.everywhere if a is not entry)

    return end
