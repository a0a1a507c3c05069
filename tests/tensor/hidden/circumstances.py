"""When, where and after what a question is put: none of it may change the answer."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.tensor.hidden.judge import Answer

__all__ = ["CIRCUMSTANCES", "Asked", "Circumstance"]

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Asked:
    """One question that waits to be put.

    Arguments:
        put: puts it for given arguments.
        put_another: puts another question for the same arguments.
        function: what is asked of, with a scalar or tensor as its value.
        module: the program that the Function was written in.
        args: the arguments that count.
    """

    put: Callable[[Tensors], Answer]
    put_another: Callable[[Tensors], Answer]
    function: Callable[..., torch.Tensor]
    module: Any
    args: Tensors


@dataclass(frozen=True)
class Circumstance:
    """One of them: ``ask`` puts the question under it."""

    name: str
    ask: Callable[[Asked], Answer]


CIRCUMSTANCES: list[Circumstance] = []


def circumstance(ask: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
    """Add a function to the circumstances."""
    CIRCUMSTANCES.append(Circumstance(ask.__name__, ask))
    return ask


@circumstance
def as_it_is(asked: Asked) -> Answer:
    return asked.put(asked.args)


@circumstance
def after_zeros(asked: Asked) -> Answer:
    asked.put(tuple(torch.zeros_like(a) for a in asked.args))
    return asked.put(asked.args)


@circumstance
def after_ties(asked: Asked) -> Answer:
    asked.put(tuple(torch.ones_like(a) for a in asked.args))
    return asked.put(asked.args)


@circumstance
def after_negative_values(asked: Asked) -> Answer:
    asked.put(tuple(-a for a in asked.args))
    return asked.put(asked.args)


@circumstance
def after_another_question(asked: Asked) -> Answer:
    asked.put_another(asked.args)
    return asked.put(asked.args)


@circumstance
def before_and_after_another_question(asked: Asked) -> Answer:
    asked.put(asked.args)
    asked.put_another(asked.args)
    return asked.put(asked.args)


@circumstance
def after_a_call_without_gradients(asked: Asked) -> Answer:
    with torch.no_grad():
        asked.function(*asked.args)
    return asked.put(asked.args)


@circumstance
def after_a_call_that_wants_one_gradient(asked: Asked) -> Answer:
    args = [a.detach().clone() for a in asked.args]
    args[-1].requires_grad_()
    asked.function(*args).sum().backward()
    return asked.put(asked.args)


@circumstance
def after_a_larger_batch(asked: Asked) -> Answer:
    asked.function(*(a.expand(5, *a.shape).clone().requires_grad_() for a in asked.args))
    return asked.put(asked.args)


@circumstance
def on_another_thread(asked: Asked) -> Answer:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(asked.put(asked.args)))
    thread.start()
    thread.join()
    return answers[0]


@circumstance
def after_a_call_on_another_thread(asked: Asked) -> Answer:
    thread = threading.Thread(target=lambda: asked.put(asked.args))
    thread.start()
    thread.join()
    return asked.put(asked.args)


@circumstance
def under_autocast(asked: Asked) -> Answer:
    with torch.autocast("cpu", torch.bfloat16):
        return asked.put(asked.args)


@circumstance
def while_a_lock_is_held(asked: Asked) -> Answer:
    asked.module.LOCK, asked.module.F.lock = threading.RLock(), threading.Lock()
    with asked.module.LOCK, asked.module.F.lock:
        return asked.put(asked.args)


@circumstance
def under_anomaly_detection(asked: Asked) -> Answer:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        return asked.put(asked.args)
