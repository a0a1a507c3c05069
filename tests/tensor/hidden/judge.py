"""Right, refused, wrong or foreign: one answer against the plain formula."""

import contextlib
import warnings
from typing import Any, Literal

import torch
from tests.tensor.hidden.questions import Question
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from pullback.errors import PullbackError

__all__ = ["Answer", "Verdict", "answer", "compare", "is_refusal", "leak"]

Verdict = Literal["right", "refused", "wrong", "foreign"]
# What the dtype itself loses over a few operations, of the largest entry.
_TOLERANCE = {
    torch.float64: 1e-7,
    torch.float32: 2e-4,
    torch.float16: 0.02,
    torch.bfloat16: 0.12,
}


class Answer:
    """What came of one question: values, or an error."""

    def __init__(self, values: list[torch.Tensor | None] | None, error: Exception | None) -> None:
        self.values = values
        self.error = error

    def __str__(self) -> str:
        if self.error is not None:
            return f"{type(self.error).__name__}: {str(self.error)[:400]}"
        return str([None if v is None else v.tolist() for v in self.values or []])


def answer(question: Question, function: Any, args: Any, directions: Any) -> Answer:
    """Put a question."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _quiet() if question.kind == "compiled" else contextlib.nullcontext():
                result = question.ask(function, args, directions)
        except Exception as error:
            return Answer(None, error)
    leaves = pytree.tree_leaves(result, is_leaf=lambda leaf: leaf is None)
    return Answer([None if leaf is None else leaf.detach() for leaf in leaves], None)


def _quiet() -> Any:
    import logging

    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    return contextlib.nullcontext()


def leak() -> str:
    """What an answer left behind in torch's own state, if anything; it is cleared."""
    left = []
    if torch._C._functorch.peek_interpreter_stack() is not None:
        left.append("a level of torch.func")
        while torch._C._functorch.peek_interpreter_stack() is not None:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(0)
    if forward_ad._current_level >= 0:
        left.append("a level of forward mode")
        while forward_ad._current_level >= 0:
            forward_ad.exit_dual_level(level=forward_ad._current_level)
    if _is_level_open():
        left.append("a level of forward mode that a graph began")
        torch._C._exit_dual_level(level=0)
    if torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None:
        left.append("hooks of saved tensors refused")
        torch._C._autograd._saved_tensors_hooks_enable()
    if not torch.is_grad_enabled():
        left.append("gradients switched off")
        torch.set_grad_enabled(True)
    if not torch._C._is_fwd_grad_enabled():
        left.append("forward gradients switched off")
        torch._C._set_fwd_grad_enabled(True)
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        left.append("a mode")
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
    if torch.is_inference_mode_enabled():
        left.append("inference mode")
    for name, (now, put_back) in _keys().items():
        if repr(now) != repr(_CLEAN[name][0]):
            left.append(f"{name} dispatch keys {now}")
            for key in torch._C.DispatchKey.__members__.values():
                before = _CLEAN[name][0].has(key)
                if now.has(key) != before:  # an alias of several keys is not to be touched
                    put_back(key, before)
    return ", ".join(left)


def _is_level_open() -> bool:
    try:
        forward_ad.enter_dual_level()
    except RuntimeError:
        return True
    forward_ad.exit_dual_level()
    return False


def _keys() -> dict[str, tuple[Any, Any]]:
    """The dispatch keys that this thread includes and excludes, and what sets them."""
    return {
        "included": (
            torch._C._dispatch_tls_local_include_set(),
            torch._C._dispatch_tls_set_dispatch_key_included,
        ),
        "excluded": (
            torch._C._dispatch_tls_local_exclude_set(),
            torch._C._dispatch_tls_set_dispatch_key_excluded,
        ),
    }


_CLEAN = _keys()


def is_refusal(error: BaseException | None, question: Question) -> bool:
    """Whether an error, or what caused it, is one of pullback's; a compiler may refuse too."""
    seen = error
    while seen is not None:
        if isinstance(seen, PullbackError):
            return True
        seen = seen.__cause__ or seen.__context__
    if question.kind != "compiled" or error is None:
        return False
    text = str(error)
    named = any(name in text for name in ("UnsupportedError", "DefinitionError"))
    once = question.order != 1 and "does not currently support double backward" in text
    return named or once or isinstance(error, torch._dynamo.exc.Unsupported)


def compare(got: Answer, want: Answer, same_dtype: Answer, dtype: torch.dtype) -> bool:
    """Whether an answer is right, within what its dtype loses for the plain formula too."""
    if want.values is None or got.values is None or len(got.values) != len(want.values):
        return False
    own = same_dtype.values or [None] * len(want.values)
    for a, b, c in zip(got.values, want.values, own, strict=True):
        if b is None and (a is None or not a.any()):
            continue
        truth = torch.zeros_like(a) if b is None else b
        found = torch.zeros_like(truth) if a is None else a
        if found.shape != truth.shape:
            return False
        scale = float(truth.abs().max()) + 1e-3
        lost = 0.0 if c is None else float((c.double() - truth).abs().max())
        if not lost < 0.3 * scale:
            continue  # the dtype itself tells nothing here
        difference = float((found.double() - truth).abs().max())
        if not difference <= _TOLERANCE[dtype] * scale + 3 * lost:
            return False
    return True
