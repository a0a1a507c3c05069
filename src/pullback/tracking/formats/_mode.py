"""What rounds every product of a model while it runs, and refuses those that it cannot round.

Two modes of torch work together. The first sees what the model calls, rounds the factors of each
product that it knows, and the gradient of its result. The second sees what reaches torch's
kernels, and refuses a product that the first did not enter, however it was called.
"""

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from pullback.errors import UnsupportedError
from pullback.internal._open import open_function
from pullback.internal.torch import (
    FunctionMode,
    TorchDispatchMode,
    answering,
    base_of,
    called_from,
    current_graph_task_id,
    never_compile,
    wrap_recomputation,
)
from pullback.tracking._hang import Running, names_of
from pullback.tracking._outputs import deferred_in, tensors_in
from pullback.tracking.formats._products import (
    FACTORS,
    REFUSED,
    Weights,
    count_factors,
    is_product,
    multiply_by,
    replace_factors,
)
from pullback.tracking.formats._recipe import ProductFormats, Role
from pullback.tracking.formats._rounding import ProductRounding, Spot

__all__ = ["check_output", "rounding_products"]


@contextlib.contextmanager
def rounding_products(
    model: nn.Module, products: ProductRounding, path: Sequence[str] = ("",)
) -> Iterator[None]:
    """Round every product of a model that is called in a block, or computed again for it.

    The path is of the modules that are running, by name.
    """
    mode = _ProductMode(model, products, path)
    mode.check_region()
    with mode.following(), mode, _Sentinel(mode), answering(mode.apply):
        yield


def check_output(output: Any) -> None:
    """Refuse generators, coroutines, functions and modules, also within containers."""
    found = deferred_in(output)
    if found is not None:
        raise UnsupportedError(
            "simulate_format cannot round what a model computes after its forward.",
            given=f"an output of type {type(found).__name__}",
            expected="tensors, in containers or not",
            mend="Return what it computes, such as list(...) of a generator.",
        )


class _ProductMode(FunctionMode):
    """Rounds the factors of every product, and the gradient that comes back to its result."""

    def __init__(self, model: nn.Module, products: ProductRounding, path: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.products = products
        # What a module leaves to do would go by another name.
        self.running = Running(path, check_output)
        self.names: dict[str, list[str]] = {}  # by the first, all of a module
        self.counts: Counter[tuple[str, str]] = Counter()  # of products in this pass
        self.entered = False  # inside of a product whose factors are rounded
        self.differentiable = torch.is_grad_enabled()
        self.custom: type | None = None  # whose backward will multiply as it likes
        self.weights = Weights(model.modules)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        wrap_recomputation(self, self.recomputed)
        self.weights.see(args)
        if func in REFUSED and self.rounds:
            raise UnsupportedError(
                f"simulate_format cannot reach the products inside of {REFUSED[func]}.",
                given=f"a model that calls torch's {REFUSED[func]}",
                expected="linear, matmul, convolution and attention",
                mend="Write it in products of two tensors, or simulate the other layers only.",
            )
        if func in FACTORS:
            return self.multiply(func, args, kwargs)
        opened = open_function(func)
        if opened is None:
            return func(*args, **kwargs)
        with self:  # the mode is off inside of this method; the function's own products count
            return opened(*args, **kwargs)

    @property
    def rounds(self) -> bool:
        """Whether the products of the module that runs are to be rounded."""
        return self.formats() is not None

    def formats(self) -> ProductFormats | None:
        """The formats of the module that runs, which must be the same by all of its names."""
        names = self.names.get(self.running.names[-1], self.running.names[-1:])
        found = [self.products.recipe.find(name) for name in names]
        for name, other in zip(names, found, strict=True):
            if other != found[0]:
                raise UnsupportedError(
                    "The recipe has other rules for another name of the same module.",
                    given=f"a module that multiplies, as {names[0]!r} and {name!r}",
                    mend="Give both names one rule, or use two modules that share parameters.",
                )
        return found[0]

    def multiply(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a product with rounded factors."""
        given = (*args, *kwargs.values())
        if count_factors(func, args, kwargs) == 1 or not any(tensors_in(given)):
            return self.run(func, args, kwargs)
        self.check_call(func, args, kwargs)
        formats = self.formats()
        if formats is None:
            return self.run(func, args, kwargs)
        if formats.follows_dimension:
            multiply = functools.partial(self.multiply_blocks, formats)
            return multiply_by(multiply, func, args, kwargs)
        spot = self.spot(formats, given)
        places = itertools.count()

        def replace(x: Tensor, name: str) -> Tensor:
            self.check_factor(x)
            role = self.role(x, formats, name == "weight")
            return self.products.factor(x, formats, role, spot._replace(factor=next(places)))

        args, kwargs = replace_factors(func, args, kwargs, replace)
        name = func.__name__
        in_place = name.endswith("_") and not name.endswith("__")
        product = getattr(Tensor, name[:-1]) if in_place else func
        result = self.products.result(self.run(product, args, kwargs), formats, spot)
        # What is changed in place is used under its own name: its gradient is rounded as well.
        return args[0].copy_(result) if in_place else result

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a product whose factors are as they shall be."""
        self.entered, before = True, self.entered
        try:
            return func(*args, **kwargs)
        finally:
            self.entered = before

    def role(self, x: Tensor, formats: ProductFormats, named: bool = False) -> Role:
        """What a factor is, which is looked up only where it matters."""
        alike = formats.weight == formats.activation and self.products.meter is None
        return "weight" if named or alike or self.weights.hold(x) else "activation"

    def spot(self, formats: ProductFormats, args: Iterable[object]) -> Spot:
        """Where the product of some arguments that is called now is."""
        name = self.running.names[-1]
        parameter = self.parameter_of(args) if formats.remembers else ""
        self.counts[name, parameter] += 1
        return Spot(name, self.counts[name, parameter], parameter=parameter)

    def parameter_of(self, args: Iterable[object]) -> str:
        """The name of the first parameter of the model among some arguments, or views of it."""
        for each in args:
            if isinstance(each, Tensor):
                whole = each if isinstance(each, nn.Parameter) else base_of(each)
                if whole in self.parameters:
                    return self.parameters[whole]
        return ""

    @functools.cached_property
    def parameters(self) -> dict[Tensor | None, str]:
        """The names of the model's parameters."""
        return {each: name for name, each in self.model.named_parameters()}

    def multiply_blocks(
        self, formats: ProductFormats, a: Tensor, b: Tensor, named: bool = False
    ) -> Tensor:
        """Multiply matrices whose factors are scaled along a dimension."""
        for factor in (a, b):
            self.check_factor(factor)
        roles = self.role(a, formats), self.role(b, formats, named)
        spot = self.spot(formats, (a, b))
        return self.run(self.products.multiply_blocks, (a, b, formats, roles, spot), {})

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Keep the path while modules call one another, if products go by their module's name."""
        recipe = self.products.recipe
        named = self.products.meter or set(recipe.rules) != {"*"} or recipe.remembers
        found = names_of(self.model) if named else {}
        found.pop(self.model, None)
        self.names |= {names[0]: names for names in found.values()}
        try:
            self.running.follow((names[0], module) for module, names in found.items())
            yield
        finally:
            self.running.stop()

    def apply(
        self, call: Callable[..., Any], cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Apply a custom Function, and remember it where its gradient is wanted."""
        given = (*args, *kwargs.values())
        wanted = any(isinstance(each, Tensor) and each.requires_grad for each in given)
        before = self.custom
        if wanted and torch.is_grad_enabled():
            self.custom = cls
        try:
            return call(cls, *args, **kwargs)
        finally:
            self.custom = before

    def check_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse a product that cannot be rounded where it is called."""
        if kwargs.get("out") is not None or count_factors(func, args, kwargs) > 3:
            raise UnsupportedError(
                f"simulate_format cannot round inside of {func.__name__}.",
                given="a product of several factors, or one that is written into a tensor",
                expected="a product of two tensors",
                mend="Write it as a @ b, one product at a time.",
            )
        if self.differentiable and not torch.is_grad_enabled() and called_from(_REENTRANT):
            raise UnsupportedError(
                "simulate_format cannot follow reentrant activation checkpointing, which would "
                "compute again without rounding.",
                mend="Pass use_reentrant=False.",
            )
        if self.custom is not None:
            raise UnsupportedError(
                f"simulate_format cannot round inside of {self.custom.__name__}.",
                given="a product in a custom Function, whose backward multiplies out of reach",
                expected="products that torch differentiates",
                mend="Write its forward without the Function, or leave this part out.",
            )

    def check_factor(self, x: Tensor) -> None:
        """Refuse what does not lie in memory as a strided tensor."""
        if x.layout is not torch.strided or x.is_nested:
            raise UnsupportedError(
                "simulate_format does not round sparse or nested factors.",
                given=f"a factor with layout {x.layout}",
                mend="Pass x.to_dense() or a padded tensor, or leave this part of the model out.",
            )

    def check_region(self) -> None:
        """Look at the checkpointing around the whole model, which will run all of it again."""
        if not self.differentiable and called_from(_REENTRANT):
            self.check_rerun(reentrant=True)

        def leave(function: Callable[..., Any]) -> Callable[..., Any]:
            self.check_rerun()
            return function  # it enters a mode of its own

        wrap_recomputation(self, leave)

    def check_rerun(self, reentrant: bool = False) -> None:
        """Refuse to run again where the numbers would be others."""
        if self.products.recipe.remembers:
            raise _refusal_of_delay()
        drawn = self.products.rounding == "stochastic"
        if drawn and (reentrant or self.products.generator is not None):
            raise UnsupportedError(
                "simulate_format would not draw the same noise again for the activation "
                "checkpointing around the model.",
                given="use_reentrant=True" if reentrant else "a generator, which is not put back",
                expected="torch's own generator, and use_reentrant=False",
                mend="Pass generator=None and use_reentrant=False, or checkpoint inside the model.",
            )

    def recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What activation checkpointing runs again: in the mode as well, with the same noise."""
        generator = self.products.generator
        state = None if generator is None else generator.get_state()
        path = list(self.running.names)
        formats = self.formats()
        if formats is not None and formats.remembers:
            raise _refusal_of_delay()

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            after = None if generator is None else generator.get_state()
            if generator is not None and state is not None:
                generator.set_state(state)
            try:
                with rounding_products(self.model, self.products, path):
                    return function(*args, **kwargs)
            finally:
                if generator is not None and after is not None:
                    generator.set_state(after)

        return run


def _refusal_of_delay() -> UnsupportedError:
    return UnsupportedError(
        "simulate_format does not delay scales under activation checkpointing, which would "
        "compute again with later ones.",
        mend="Use a ScaledFormat without history, or no checkpointing.",
    )


class _Sentinel(TorchDispatchMode):
    """Refuses products that the mode did not enter."""

    supports_higher_order_operators = True  # to refuse them by name

    def __init__(self, mode: _ProductMode) -> None:
        super().__init__()
        self.mode = mode


def _dispatch(
    self: _Sentinel, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    # The backward of a product multiplies what was rounded already.
    whole = not hasattr(func, "overloadpacket")  # flex_attention, a scan: programs of their own
    stray = (whole or (is_product(func) and not self.mode.entered)) and self.mode.rounds
    if stray and current_graph_task_id() == -1 and (whole or any(tensors_in(args))):
        raise UnsupportedError(
            "simulate_format met a product that it does not round, or what may be one.",
            given=f"a call that reaches {func}",
            expected="linear, matmul, einsum, convolution and attention",
            mend="Write it as a @ b, or leave this part of the model out.",
        )
    return func(*args, **(kwargs or {}))


# Set afterwards: torch wraps one that a class begins with, and its first call would then wait for
# the import of the compiler.
_Sentinel.__torch_dispatch__ = _dispatch  # type: ignore[assignment]
never_compile(_dispatch)


_REENTRANT = torch.utils.checkpoint.CheckpointFunction.forward.__code__
