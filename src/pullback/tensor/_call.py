"""`Call`: one application of a Function, from its arguments to what it saved.

The engine and the derived rules work on flat tuples of tensors. A call keeps what is needed to
run the author's rules on them: the structure of arguments and results, and where each saved
tensor comes from. It holds no tensor itself, so it can be shared by all levels of nested
transforms, each of which has its own tensors at the same places.
"""

from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active as _transforming
from pullback.internal.torch import pytree
from pullback.tensor._autocast import State, scope
from pullback.tensor._context import INTERNAL, Context
from pullback.tensor._definition import Definition
from pullback.tensor._habits import old_habits
from pullback.tensor._pool import Place, Pool, fill
from pullback.tensor._structure import (
    ONE,
    Template,
    children,
    flatten,
    match,
    unflatten,
    without_values,
)

__all__ = ["Call", "Meta"]

# The shape, dtype and device of an output or input, as its Function sees it.
Meta = tuple[torch.Size, torch.dtype, torch.device]


class Call:
    """One application of a Function.

    The *pool* of a call is its input tensors, then its output tensors, then its residuals:
    tensors that forward computed and saved without returning them. The engine returns them
    beside the outputs, so that autograd knows them and derivatives can flow through them.
    """

    __slots__ = (
        "attributes",
        "autocast",
        "count",
        "definition",
        "dirty",
        "grad_enabled",
        "inputs",
        "materialize",
        "names",
        "needed",
        "needs",
        "non_differentiable",
        "outputs",
        "own_graph",
        "residual_saves",
        "residuals",
        "result",
        "saved_for_backward",
        "saved_for_forward",
        "saves",
        "single",
        "slots",
        "template",
        "transformed",
    )

    attributes: dict[str, Any]  # of the context, as the author set them
    count: int  # of output tensors
    dirty: list[int]
    inputs: list[Meta]
    materialize: bool
    needed: list[int]
    non_differentiable: list[int]
    outputs: list[Meta]
    own_graph: bool
    residual_saves: list[int]  # for each residual, when it was saved, counting all saves
    residuals: list[Meta]
    result: Template
    saved_for_backward: list[Place]
    saved_for_forward: list[Place]
    saves: int
    single: bool
    slots: dict[str, Any]  # attributes that hold tensors, with places instead

    def __init__(
        self,
        definition: Definition,
        template: Template,
        names: tuple[str, ...],
        needs: Sequence[bool],
        autocast: State,
        *,
        transformed: bool,
    ) -> None:
        self.definition = definition
        self.template = template
        self.names = names
        self.needs = needs
        self.autocast = autocast
        self.transformed = transformed  # by torch.func or dual numbers, at some level
        self.grad_enabled = torch.is_grad_enabled()

    def again(self) -> "Call":
        """A call with the same arguments that has not run yet."""
        return Call(
            self.definition,
            self.template,
            self.names,
            self.needs,
            self.autocast,
            transformed=self.transformed,
        )

    def by_argument(self, needs: Sequence[bool]) -> tuple[bool, ...]:
        """Group flags for tensors by argument of forward: true if any tensor in it is."""
        holes, spec = self.template
        if spec is None and len(needs) == len(holes):
            return tuple(needs)
        marked = unflatten(without_values(self.template, False), needs)
        if spec is None:
            return marked
        return tuple(any(pytree.tree_leaves(mark)) for mark in marked)

    # Forward

    def run_forward(
        self, tensors: Sequence[torch.Tensor], saves: list[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Run forward and record what it saved; returns its outputs and residuals.

        Arguments:
            tensors: the input tensors.
            saves: if given, receives every tensor that forward saved, in order.
        """
        definition = self.definition
        context = Context(self.needs, self.by_argument)
        versions = None if definition.lenient else _versions(tensors)
        if self.transformed or _transforming():
            refuse = None if saves is not None else self.refuse_own_graph
            published = definition.lenient
            with old_habits(tensors, self.needs, published=published, refuse_graph=refuse):
                output = self._call_forward(context, tensors)
        else:
            output = self._call_forward(context, tensors)
        if versions is not None and versions != _versions(tensors):
            self._refuse_mutation(tensors, versions, context)
        return self.capture(context, tensors, output, saves)

    def run_alone(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run forward where nothing is differentiated, so that nothing has to be kept."""
        context = Context(self.needs, self.by_argument)
        versions = None if self.definition.lenient else _versions(tensors)
        output = self._call_forward(context, tensors)
        if versions is not None and versions != _versions(tensors):
            self._refuse_mutation(tensors, versions, context)
        if context._dirty:
            pool = Pool(tensors, (), search_objects=False)
            for tensor in context._dirty:
                pool.input_place(tensor, self.definition.name)
            return output
        single = type(output) is not tuple
        template, outputs = flatten((output,) if single else output)
        entries = unflatten(template, _views_of_inputs(outputs, tensors))
        return entries[0] if single else entries

    def _call_forward(self, context: Context, tensors: Sequence[torch.Tensor]) -> Any:
        definition = self.definition
        values = unflatten(self.template, tensors)
        if definition.setup_context is None:
            return definition.call(values, self.names, context)
        output = definition.call(values, self.names)
        definition.setup_context(context, values, output)
        return output

    def capture(
        self,
        context: Context,
        tensors: Sequence[torch.Tensor],
        output: Any,
        saves: list[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Record the structure of the output and the places of all saved tensors."""
        if type(output) is torch.Tensor:
            self.single, self.result, outputs = True, ONE, [output]
        else:
            self.single = not isinstance(output, tuple) or hasattr(output, "_fields")
            self.result, outputs = flatten((output,) if self.single else output)
        self.materialize = context._materialize
        pool = Pool(tensors, outputs, search_objects=self.transformed)
        self.saved_for_backward = [pool.place(t) for t in context._saved_for_backward]
        self.saved_for_forward = [pool.place(t) for t in context._saved_for_forward]
        self.attributes, self.slots = {}, {}
        for name, value in vars(context).items():
            if name not in INTERNAL:
                stripped = pool.strip(value)
                (self.attributes if stripped is value else self.slots)[name] = stripped
        self.dirty = [pool.input_place(t, self.definition.name) for t in context._dirty]
        marked = set(map(id, context._non_differentiable))
        self.non_differentiable = [
            i
            for i, t in enumerate(outputs)
            if not (t.is_floating_point() or t.is_complex()) or id(t) in marked
        ]
        self.count = len(outputs)
        if marked:  # torch would give a view a history all the same
            outputs = [t.detach() if id(t) in marked else t for t in outputs]
        self._measure(tensors, outputs, pool)
        self.own_graph = pool.own_graph
        if saves is not None:
            saves.extend(pool.saves)
        elif pool.own_graph and self.transformed:
            raise self.refuse_own_graph()
        self.needed = sorted(pool.used)
        if not self.dirty:
            outputs = _views_of_inputs(outputs, tensors)
        return (*outputs, *pool.residuals)

    def refuse_own_graph(self) -> UnsupportedError:
        """The error for a rule that differentiates by itself, which no transform can see."""
        return UnsupportedError(
            f"{self.definition.name} saves tensors with a graph that its forward built itself; "
            "only first-order gradients by torch.autograd can be had of it.",
            mend="Build the graph in backward, or write the rules in torch operations.",
        )

    def _measure(
        self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], pool: Pool
    ) -> None:
        """Note the shapes that derivatives will need; the plain first order needs none."""
        self.residuals = [_meta(t) for t in pool.residuals]
        self.residual_saves = pool.residual_saves
        self.saves = len(pool.saves)
        if self.residuals or self.transformed:
            self.inputs = [_meta(t) for t in tensors]
        if len(outputs) > 1 or self.transformed:
            self.outputs = [_meta(t) for t in outputs]
        if self.residuals and not self.definition.once and self.differentiable_residuals:
            pool.used.update(range(len(tensors)))  # to run forward again at second order

    @property
    def differentiable_residuals(self) -> list[int]:
        """Which residuals are floating or complex, by position among the residuals."""
        return [i for i, (_, dtype, _) in enumerate(self.residuals) if _differentiable(dtype)]

    def restore(self, tensors: Sequence[Any]) -> Any:
        """Give output tensors the structure that forward returned."""
        if self.single and len(tensors) == 1 and self.result[1] is None:
            return tensors[0]
        entries = unflatten(self.result, tensors)
        return entries[0] if self.single else entries

    # Backward and forward mode

    def context(
        self, saved: dict[int, Any], needs: Sequence[bool], *, forward_mode: bool = False
    ) -> Context:
        """The context of forward again, with the tensors of one level of transforms."""
        places = self.saved_for_backward
        if forward_mode and self.saved_for_forward:
            places = self.saved_for_forward
        found = tuple(saved[place] if isinstance(place, int) else place for place in places)
        context = Context(needs, self.by_argument, found)
        vars(context).update(self.attributes)
        for name, value in self.slots.items():
            setattr(context, name, fill(value, saved))
        return context

    def pull(
        self,
        saved: dict[int, Any],
        cotangents: Sequence[torch.Tensor | None],
        needs: Sequence[bool],
        *,
        transposing: bool = False,
    ) -> list[torch.Tensor | None]:
        """Run the author's backward; returns one gradient or None per input tensor."""
        definition = self.definition
        backward = definition.transposable if transposing else definition.backward
        if backward is None:
            raise DefinitionError(
                f"{definition.name} has no backward.",
                mend="Define backward(ctx, *cotangents) as a static method.",
            )
        given = [
            self._zeros(i) if cotangent is None and self.materialize else cotangent
            for i, cotangent in enumerate(cotangents)
        ]
        versions = None if definition.lenient else _versions(given)
        arguments = unflatten(without_values(self.result, None), given)
        context = self.context(saved, needs)
        if definition.autocast == "ambient":
            result = self._call_backward(backward, context, arguments)
        else:
            with scope(self.autocast):
                result = self._call_backward(backward, context, arguments)
        if versions is not None and versions != _versions(given):
            raise DefinitionError(
                f"The backward of {definition.name} changes its cotangent in place.",
                expected="cotangents are left as they are: other code holds them too",
                mend="Compute out of place, or on cotangent.clone().",
            )
        return match(self.template, self._gradients(result), self._complain)

    def _call_backward(self, backward: Any, context: Context, arguments: Any) -> Any:
        given = (list(arguments),) if self.definition.boxed else arguments
        if _transforming():
            with old_habits(published=self.definition.lenient):
                return backward(context, *given)
        return backward(context, *given)

    def _zeros(self, output: int) -> torch.Tensor | None:
        shape, dtype, device = self.outputs[output]
        if not (dtype.is_floating_point or dtype.is_complex):
            return None
        return torch.zeros(shape, dtype=dtype, device=device)

    def _gradients(self, result: Any) -> tuple[Any, ...]:
        gradients = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        holes, spec = self.template
        expected = len(holes) if spec is None else len(children(spec))
        if len(gradients) > expected and all(g is None for g in gradients[expected:]):
            gradients = gradients[:expected]
        if len(gradients) != expected:
            raise DefinitionError(
                f"The backward of {self.definition.name} returned a wrong number of gradients.",
                given=f"{len(gradients)}",
                expected=f"{expected}, one for each argument of forward",
                mend="Return None for arguments that have no gradient.",
            )
        return gradients

    def _complain(self, index: int, detail: str) -> DefinitionError:
        return DefinitionError(
            f"The backward of {self.definition.name} returned a gradient of another structure "
            f"than argument {index} of forward.",
            given=detail,
            mend="Return a gradient nested as the argument is, or None.",
        )

    def _refuse_mutation(
        self, tensors: Sequence[torch.Tensor], versions: list[int], context: Context
    ) -> None:
        definition = self.definition
        allowed = {id(tensor) for tensor in context._dirty}
        values = unflatten(self.template, tensors)
        for position in definition.mutates:
            if position < len(values):
                allowed.update(id(leaf) for leaf in pytree.tree_leaves(values[position]))
        for index, (tensor, version) in enumerate(zip(tensors, versions, strict=True)):
            if tensor._version != version and id(tensor) not in allowed:
                raise DefinitionError(
                    f"The forward of {definition.name} changes an input in place and does not "
                    "declare it.",
                    given=f"input tensor {index} of shape {tuple(tensor.shape)}",
                    mend="Compute out of place, call ctx.mark_dirty and return the input, or "
                    "name a buffer in the class attribute mutates.",
                )


def _meta(tensor: torch.Tensor) -> Meta:
    return tensor.shape, tensor.dtype, tensor.device


def _differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _views_of_inputs(
    outputs: list[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs, as torch wants them: an input that is returned is a view of it."""
    given = set(map(id, inputs))
    if given.isdisjoint(map(id, outputs)):
        return outputs
    return [t.view_as(t) if id(t) in given else t for t in outputs]


def _versions(tensors: Sequence[torch.Tensor | None]) -> list[int] | None:
    try:
        return [-1 if t is None else t._version for t in tensors]
    except RuntimeError:  # tensors made in inference mode keep no count
        return None
