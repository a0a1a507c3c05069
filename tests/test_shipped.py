"""Every Function that is shipped is reached by a case, so that `pullback check` holds it to all."""

import importlib
import inspect
import pkgutil
import sys

import torch
from benchmarks.shipped import read, shipped_cases

from pullback.conformance import CLAUSES

ROOMS = ("gradients", "tracking", "trajectory", "compat")


def shipped_functions():
    """Every subclass of `pullback.Function` that a room defines."""
    found = set()
    for room in ROOMS:
        package = importlib.import_module(f"pullback.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"pullback.{room}."):
            if module.name.endswith("_triton"):
                continue
            for value in vars(importlib.import_module(module.name)).values():
                is_function = inspect.isclass(value) and issubclass(value, torch.autograd.Function)
                if is_function and value.__module__ == module.name:
                    found.add(value)
    return found


def rules(function):
    """The code of the rules that a class defines itself."""
    names = ("forward", "backward", "setup_context")
    own = [vars(function)[name] for name in names if name in vars(function)]
    return {inspect.unwrap(getattr(rule, "__func__", rule)).__code__ for rule in own}


def run(case):
    """Run forward and backward of a case."""
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = case.function.apply if inspect.isclass(case.function) else case.function
    outputs = torch.utils._pytree.tree_leaves(call(*inputs))
    flowing = [y for y in outputs if isinstance(y, torch.Tensor) and y.requires_grad]
    torch.autograd.backward(flowing, [torch.ones_like(y) for y in flowing])


def watched(case):
    """The code that runs for a case."""
    seen = set()
    run(case)  # kernels are compiled once, unwatched
    sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code))
    try:
        run(case)
    finally:
        sys.setprofile(None)
    return seen


def test_every_function_that_is_shipped_is_reached_by_a_case():
    functions = shipped_functions()
    assert len(functions) >= 25
    named = {id(case.function) for case in shipped_cases()}
    # A class without rules of its own is another name of its base.
    missed = [f for f in functions if id(f) not in named and rules(f)]
    for case in shipped_cases():
        if not missed:
            break  # to watch a call takes many times as long as the call
        seen = watched(case)
        missed = [f for f in missed if not rules(f) & seen]
    assert sorted(f"{f.__module__}:{f.__name__}" for f in missed) == []


def test_nothing_that_is_shipped_is_broken_and_what_is_refused_says_why():
    rows = read()
    assert {row["clause"] for row in rows} == {clause.id for clause in CLAUSES}
    assert [row for row in rows if row["verdict"] in ("broken", "crashes")] == []
    assert [row for row in rows if row["verdict"] == "lacking" and not row["detail"]] == []
    assert {row["case"] for row in rows} == {case.name for case in shipped_cases()}
