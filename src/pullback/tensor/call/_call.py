"""`Call`: one application of a Function, from its arguments to what it saved.

The engine and the derived rules work on flat tuples of tensors. A call keeps what is needed to
run the author's rules on them: the structure of arguments and results, and where each saved
tensor comes from. It holds no tensor itself, so it can be shared by all levels of nested
transforms, each of which has its own tensors at the same places.
"""

# Long: one application from its arguments to its gradients, which all of it needs.

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import is_any_autocast_enabled as _autocasting
from pullback.internal.torch import len_torch_dispatch_stack, pytree, versions_of
from pullback.tensor.call._context import Context
from pullback.tensor.call._definition import Definition
from pullback.tensor.call._refusals import record, refuse_another, refuse_mutation, refuse_written
from pullback.tensor.values import _random
from pullback.tensor.values._autocast import State, scope
from pullback.tensor.values._levels import is_differentiable
from pullback.tensor.values._places import Place, Places, are_plain, fill, refuse_layouts, views_of
from pullback.tensor.values._structure import (
    HOLE,
    ONE,
    Template,
    children,
    flatten,
    is_mask,
    match,
    unflatten,
)
from pullback.tensor.watch._leniency import leniency

__all__ = ["Call", "Kept", "Meta", "zeros"]

# The shape, dtype and device of an output or input, as its Function sees it.
Meta = tuple[torch.Size, torch.dtype, torch.device]
# For each input its place among the saved tensors, or a reference and the tensor's version then.
Kept = list[int | tuple[Any, int]]


class Call:
    """One application of a Function.

    The *places* of a call are its input tensors, then its output tensors, then its residuals:
    tensors that forward computed and saved without returning them. The engine returns them
    beside the outputs, so that autograd knows them and derivatives can flow through them.
    """

    autocast: State = None  # that forward ran under
    attributes: dict[str, Any] | None = None  # of the context, as the author set them
    count: int = 1  # of output tensors
    dirty: Sequence[int] = ()
    enter: Any  # applies the Function once more, outside of transforms
    grad_enabled: bool  # where it was applied
    generators: Any = None  # the states of random generators before forward, if it draws
    given: tuple[Any, ...] | None = None  # the arguments, until forward has them
    inputs: list[Meta]
    kept: Kept  # where torch's own node is the context, the inputs for a second derivative
    looped: bool = False  # forward ran item by item, under vmap
    materialize: bool = True
    names: tuple[str, ...] = ()  # of the last arguments
    needed: list[int]
    needs: Sequence[bool]  # for each input tensor, whether its gradient is wanted
    nested: bool = False  # the output is nested: see `pullback.tensor.engine._plain`
    non_differentiable: Sequence[int] = ()
    own: int | None = None  # of what torch has saved, how many the author has; all by default
    output_grad_dtypes: list[torch.dtype | None] | None  # as declared, for each output tensor
    outputs: list[Meta]
    plain: bool  # all tensors that reach backward are inputs, differentiated outputs or masks
    residuals: int  # how many tensors were saved that are neither input nor output
    result: Template = ONE
    returned: Sequence[tuple[Any, int]] = ()  # outputs, and how often they were changed till then
    seen: bool  # what else reaches backward is tensors, and no number that forward has made
    saved_for_backward: list[Place]
    saved_for_forward: list[Place]
    single: bool = True
    slots: dict[str, Any]  # attributes that hold tensors, with places instead
    tentative: bool = False  # another way to batch the rules is left
    transformed: bool = False  # by torch.func or dual numbers, at some level

    def __init__(self, definition: Definition, template: Template) -> None:
        self.definition = definition
        self.template = template

    def by_argument(self, needs: Sequence[bool]) -> tuple[bool, ...]:
        """Group flags for tensors by argument of forward: true if any tensor in it is."""
        holes, spec = self.template
        if spec is None and len(needs) == len(holes):
            return tuple(needs)
        marked = unflatten(self.template, needs, False)
        if spec is None:
            return marked
        return tuple(any(pytree.tree_leaves(mark)) for mark in marked)

    # Forward

    def take_given(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], bool]:
        """The arguments of forward, and whether their containers are copies.

        They are the very ones that were given, to which forward may write, unless a tensor in them
        is another one now.
        """
        given, self.given = self.given, None
        if self.template[1] is None:  # no container is among them
            return unflatten(self.template, tensors), False
        if given is not None and all(map(operator.is_, flatten(given)[1], tensors)):
            return given, False
        return unflatten(self.template, tensors), given is not None

    def run_forward(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run forward and record what it saved; returns its outputs and residuals."""
        definition = self.definition
        versions = None if definition.lenient else versions_of(tensors)
        asked = dict(zip(map(id, tensors), self.needs, strict=True))
        before = None if len_torch_dispatch_stack() else _random.states(tensors, self.template[0])
        values = unflatten(self.template, tensors)
        with leniency(asked, name=definition.name):
            context, output = self.forward(values)
        refuse_written(definition, self.template, tensors, values)
        if _random.changed(before):
            self.generators = before
        if versions is not None and versions != versions_of(tensors):
            refuse_mutation(definition, self.template, tensors, versions, context.dirty_tensors)
        return self.capture(context, tensors, output)

    def forward(
        self, values: tuple[Any, ...], returned: Callable[[Any], Any] = lambda output: output
    ) -> tuple[Context, Any]:
        """Run the author's forward; returns its context and what it returned.

        Arguments:
            values: its arguments.
            returned: gives what `setup_context` is told that forward has returned.
        """
        definition = self.definition
        context = Context(self.by_argument(self.needs))
        if definition.setup_context is None:
            return context, definition.call(values, self.names, context)
        output = definition.call(values, self.names)
        definition.setup_context(context, values, returned(output))
        return context, output

    def capture(
        self, context: Context, tensors: Sequence[torch.Tensor], output: Any
    ) -> tuple[torch.Tensor, ...]:
        """Record the structure of the output and the places of all saved tensors."""
        before = None if self.attributes is None else record(self)
        outputs = self.read(output, context.non_differentiable)
        self.materialize = context.materialize_grads
        self.output_grad_dtypes = self._dtypes_of(context.output_grad_dtypes, output)
        places = Places(tensors, outputs)
        self.saved_for_backward = [places.place(t) for t in context.to_save]
        self.saved_for_forward = [places.place(t) for t in context.saved_for_forward]
        attributes, slots = places.strip_each(context.__dict__)  # kept when all is known
        refuse_layouts(self.definition.name, places.residuals)
        self.dirty = [places.dirty_place(t, self.definition.name) for t in context.dirty_tensors]
        self.attributes, self.slots = attributes, slots
        if marked := set(map(id, context.non_differentiable)):
            # torch would give a view a history all the same
            outputs = [t.detach() if id(t) in marked else t for t in outputs]
        places.used.update(i for i in range(len(tensors)) if i not in self.dirty)
        self.inputs, self.outputs = list(map(_meta, tensors)), list(map(_meta, outputs))
        self.residuals = len(places.residuals)
        self.seen = self._is_seen()
        self.plain = self.seen and self._is_plain(places, tensors, outputs)
        if not self.dirty:  # it may run again
            places.used.update(range(len(tensors), len(tensors) + len(outputs)))
        self.needed = sorted(places.used)
        if before is not None and self.looped:
            refuse_another(self, before)
        return (*(outputs if self.dirty else views_of(outputs, tensors)), *places.residuals)

    def read(self, output: Any, marked: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Record the structure of the output, and which of its tensors have no derivative."""
        if type(output) is torch.Tensor and not marked:
            self.non_differentiable = () if is_differentiable(output) else (0,)
            return [output]
        self.single = not isinstance(output, tuple) or hasattr(output, "_fields")
        self.result, outputs = flatten((output,) if self.single else output)
        self.count, ids = len(outputs), set(map(id, marked))
        self.non_differentiable = [
            i for i, t in enumerate(outputs) if not is_differentiable(t) or id(t) in ids
        ]
        return outputs

    def _is_seen(self) -> bool:
        """Whether all that can reach backward is tensors at their places, and no number."""
        given = self.plain_arguments
        kept = (*(self.attributes or {}).values(), *self.slots.values())
        placed = not any(isinstance(place, torch.Tensor) for place in self.saved_for_backward)
        return placed and all(are_plain(value, given) for value in kept)

    def _is_plain(
        self, places: Places, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> bool:
        """Whether these are inputs, outputs with a derivative, and masks."""
        constant = [i for i in self.non_differentiable if is_differentiable(outputs[i])]
        marked = any(len(tensors) + i in places.used for i in constant)
        return not marked and all(map(is_mask, places.residuals))

    @property
    def plain_arguments(self) -> list[Any]:
        """The arguments, and parts of such, that are no tensors."""
        return [hole for hole in self.template[0] if hole is not HOLE]

    def entries(self, output: Any) -> tuple[Any, ...]:
        """What forward returned, as a tuple."""
        return (output,) if self.single else output

    def _dtypes_of(
        self, dtypes: Sequence[torch.dtype | None] | None, output: Any
    ) -> list[torch.dtype | None] | None:
        if dtypes is None:
            return None
        entries = (output,) if self.single else output
        if len(dtypes) != len(entries):
            raise DefinitionError(
                f"{self.definition.name} declares the gradient dtypes of another number of "
                "outputs than forward returns.",
                given=f"{len(dtypes)}",
                expected=f"{len(entries)}",
                mend="Call ctx.set_output_grad_dtype with one dtype or None for each output.",
            )
        pairs = zip(dtypes, entries, strict=True)
        return [dtype for dtype, entry in pairs for _ in flatten((entry,))[1]]

    def restore(self, tensors: Sequence[Any]) -> Any:
        """Give output tensors the structure that forward returned."""
        if self.single and len(tensors) == 1 and self.result[1] is None:
            return tensors[0]
        entries = unflatten(self.result, tensors)
        return entries[0] if self.single else entries

    # Backward and forward mode

    @property
    def once_refusal(self) -> UnsupportedError:
        """The error for the derivative of what is declared to have none."""
        return UnsupportedError(
            f"The backward of {self.definition.name} is declared once_differentiable, and its "
            "derivative was asked for.",
            mend="Write backward in differentiable torch operations and drop once_differentiable.",
        )

    def context(
        self, saved: dict[int, Any], needs: Sequence[bool], *, forward_mode: bool = False
    ) -> Context:
        """The context of forward again, with the tensors of one level of transforms."""
        places = self.saved_for_backward
        if forward_mode and self.saved_for_forward:
            places = self.saved_for_forward
        found = tuple(saved[place] if isinstance(place, int) else place for place in places)
        context = Context(self.by_argument(needs), found)
        context.__dict__.update(self.attributes or {})
        for name, value in self.slots.items():
            setattr(context, name, fill(value, saved))
        return context

    def pull(
        self,
        saved: dict[int, Any],
        cotangents: Sequence[torch.Tensor | None],
        needs: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Run the author's backward; returns one gradient or None per input tensor."""
        definition = self.definition
        given = self._filled(cotangents)
        context = self.context(saved, needs)
        with leniency(self.answers(saved), name=definition.name):
            return self.backward(definition.backward, context, given)

    def answers(self, saved: dict[int, Any]) -> dict[int, bool]:
        """What saved tensors, by id, answer when they are asked whether they require a gradient."""
        flowing = (i not in self.non_differentiable for i in range(self.count))
        asked = enumerate((*self.needs, *flowing))
        return {id(saved[i]): yes for i, yes in asked if i in saved}

    def pull_on(self, context: Context, cotangents: Sequence[Any]) -> list[torch.Tensor | None]:
        """Run the author's backward on a context, to be transposed."""
        given = self._filled(cotangents)
        with leniency({}, name=self.definition.name):
            return self.backward(self.definition.transposable, context, given)

    def _filled(self, cotangents: Sequence[Any]) -> list[Any]:
        """The cotangents as the author wants them: zeros where undefined, and in their dtypes."""
        if self.definition.backward is None:
            raise DefinitionError(
                f"{self.definition.name} has no backward.",
                mend="Define backward(ctx, *cotangents) as a static method.",
            )
        given = [
            zeros(self.outputs[i]) if cotangent is None and self.materialize else cotangent
            for i, cotangent in enumerate(cotangents)
        ]
        if self.output_grad_dtypes is None:
            return given
        return [
            cotangent if dtype is None or cotangent is None else cotangent.to(dtype)
            for dtype, cotangent in zip(self.output_grad_dtypes, given, strict=True)
        ]

    def backward(
        self, rule: Any, context: Context, given: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Run a backward on a context; returns one gradient or None per input tensor."""
        arguments = unflatten(self.result, given, None)
        return self.matched(self.run_backward(rule, context, given, arguments))

    def run_backward(
        self,
        rule: Any,
        context: Any,
        cotangents: Sequence[Any],
        arguments: Sequence[Any],
        *,
        watched: bool = False,
    ) -> Any:
        """Run a backward on arguments made of cotangents, under the autocast of forward."""
        definition = self.definition
        # Where it is watched, a change in place is made pure.
        versions = None if definition.lenient or watched else versions_of(cotangents)
        if definition.boxed:
            arguments = (list(arguments),)
        if definition.autocast != "ambient" and (self.autocast is not None or _autocasting()):
            with scope(self.autocast):
                result = rule(context, *arguments)
        else:
            result = rule(context, *arguments)
        if versions is not None and versions != versions_of(cotangents):
            raise DefinitionError(
                f"The backward of {definition.name} changes its cotangent in place.",
                expected="cotangents are left as they are: other code holds them too",
                mend="Compute out of place, or on cotangent.clone().",
            )
        return result

    def matched(self, result: Any) -> list[torch.Tensor | None]:
        """What a backward returned, as one gradient or None per input tensor."""
        return match(self.template, self._gradients(result), self._complain)

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


def _meta(tensor: torch.Tensor) -> Meta:
    return tensor.shape, tensor.dtype, tensor.device


def zeros(meta: Meta) -> torch.Tensor | None:
    """Zeros of a shape, dtype and device; ``None`` where a derivative cannot be."""
    shape, dtype, device = meta
    differentiable = dtype.is_floating_point or dtype.is_complex
    return torch.zeros(shape, dtype=dtype, device=device) if differentiable else None
