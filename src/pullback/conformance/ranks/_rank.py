"""What one rank does: it joins the group, makes its arguments, and runs what it is asked to run.

A rank is a copy of the process that asks. It talks with the other ranks by the checked code alone,
so that nothing of ours waits among them; it writes down each collective before it enters it, by
which one sees where it waits.
"""

import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from pullback.conformance.comparison._values import same_bits
from pullback.conformance.inputs._arguments import Arguments, is_continuous
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.inputs._tree import tensors
from pullback.conformance.process._failure import classify, describe
from pullback.conformance.process._guard import reseed
from pullback.internal.torch import Observing

__all__ = ["ENTERED", "Answer", "Lay", "Rank"]

_COLLECTIVES = ("c10d", "_c10d_functional")
# What torch.distributed calls the operators of its process groups.
_NAMES = {
    "allreduce_": "all_reduce", "allgather_": "all_gather", "alltoall_": "all_to_all",
    "_allgather_base_": "all_gather_into_tensor", "alltoall_base_": "all_to_all_single",
    "_reduce_scatter_base_": "reduce_scatter_tensor", "recv_any_source_": "recv",
}  # fmt: skip
ENTERED = "entered"
"""The file in a rank's folder that names the collectives it has entered, before it does so."""

_GRAPHS = 4  # of runs that are kept for a backward

Lay = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Answer:
    """What a run gave."""

    # every output tensor; the gradient of each tensor of the arguments, or ``None``
    found: tuple[Any, ...] = ()
    needs: tuple[bool, ...] = ()  # which outputs require a gradient
    # the tensors handed over that hold other numbers now, by position
    written: tuple[int, ...] = ()


class _Watch(Observing):
    """Writes down each operator of a process group before it is entered."""

    def __init__(self, entered: TextIO) -> None:
        super().__init__()
        self.entered, self.linger = entered, 0.0


def _watched(watch: Any, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    if operator.namespace not in _COLLECTIVES:
        return operator(*args, **(kwargs or {}))
    name = operator.overloadpacket.__name__
    watch.entered.write(f"{_NAMES.get(name, name.strip('_'))}\n")
    watch.entered.flush()
    found = operator(*args, **(kwargs or {}))
    time.sleep(watch.linger)
    return found


# Not in the class statement, which hides it from Dynamo, and loads that: seconds for each rank.
_Watch.__torch_dispatch__ = _watched


class Unmade(Exception):
    """The arguments of a rank cannot be made: no fault of what is checked."""


@dataclass
class Rank:
    """One rank, with all that a copy of the process takes over."""

    number: int  # which one, from 0
    count: int  # how many there are
    subject: Subject  # what is checked
    make: Callable[[int], Arguments | None]  # its arguments, or ``None`` where it takes no part
    seed: int  # seeds every run
    connection: Connection  # to the process that asks
    folder: Path  # that of all ranks, in which each has one of its own by its number
    arguments: Arguments | None = None
    # the outputs and leaves of a run, by its number
    graphs: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = field(default_factory=dict)

    def run(self) -> None:
        """Join the group that meets in the folder, and answer until nobody asks any more.

        What is asked is the name of a method and its arguments, how many seconds the rank comes
        late, and how many it pauses after it has entered a collective.
        """
        known = {"RANK": self.number, "WORLD_SIZE": self.count, "LOCAL_RANK": self.number,
                 "LOCAL_WORLD_SIZE": self.count}  # fmt: skip
        os.environ.update({name: str(value) for name, value in known.items()})
        store = dist.FileStore(str(self.folder / "store"), self.count)
        dist.init_process_group("gloo", store=store, rank=self.number, world_size=self.count)
        with (self.folder / str(self.number) / ENTERED).open("w") as entered:
            watch = _Watch(entered)
            self._reply(self._describe)
            while True:
                try:
                    asked = pickle.loads(self.connection.recv_bytes())  # noqa: S301 - of our own
                except EOFError:
                    return
                name, given, late, watch.linger = asked
                entered.seek(0)
                entered.truncate()
                time.sleep(late)
                with watch:
                    self._reply(partial(getattr(self, name), *given))

    def _reply(self, work: Callable[[], object]) -> None:
        try:
            self._say("answer", work())
        except Unmade as error:
            self._say("unmade", (str(error), None))
        except BaseException as error:  # the checked code may raise anything
            self._say("raised", (describe(error), classify(error, transform=False)))

    def _say(self, kind: str, value: object) -> None:
        # Not by `send`: torch would hand over tensors as memory that ends with the copy.
        self.connection.send_bytes(pickle.dumps((kind, value)))

    def _describe(self) -> Arguments:
        """The tensors among the arguments; what holds them, process groups too, stays here."""
        try:
            found = self.arguments = self.make(self.number)
        except Exception as error:
            raise Unmade(describe(error)) from error
        if found is None:
            return Arguments.of(())
        return replace(found, args=(), kwargs={}, owned={}, learnt={}, generators=())

    def forward(
        self, graph: int, values: list[torch.Tensor], needs: Sequence[bool], lay: Lay = torch.clone
    ) -> Answer:
        """Run forward, with tensors that `lay` puts into memory here.

        What comes from elsewhere is contiguous.
        """
        arguments = self.arguments
        if arguments is None:
            return Answer()
        moving = [k for k, value in enumerate(values) if is_continuous(value)]
        leaves = [
            value.clone().requires_grad_(needed)
            for value, needed in zip(values, needs, strict=True)
        ]
        there = replace(arguments, values=tuple(values)).with_differentiable(moving)
        reseed(self.seed)
        args, kwargs = there.build([lay(leaves[k].clone()) for k in moving])
        handed = tensors((args, kwargs))
        outputs = tensors(self.subject.call(*args, **kwargs))
        self.graphs[graph] = (outputs, leaves)
        while len(self.graphs) > _GRAPHS:
            del self.graphs[min(self.graphs)]
        returned = {id(output) for output in outputs}  # an input marked dirty is
        written = [
            k for k, (tensor, value) in enumerate(zip(handed, values, strict=True))
            if id(tensor) not in returned and not same_bits(tensor, value)
        ]  # fmt: skip
        found = tuple(output.detach() for output in outputs)
        return Answer(found, tuple(y.requires_grad for y in outputs), tuple(written))

    def backward(
        self, graph: int, cotangents: Sequence[torch.Tensor | None], lay: Lay = torch.clone
    ) -> Answer:
        """Run backward through one of the last forward runs, of a cotangent for each output."""
        if self.arguments is None:
            return Answer()
        outputs, leaves = self.graphs[graph]
        pairs = [
            (k, y, lay(g), lay(g.clone()))
            for k, (y, g) in enumerate(zip(outputs, cotangents, strict=True))
            if g is not None and y.requires_grad
        ]
        wanted = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
        if not (pairs and wanted):
            return Answer((None,) * len(leaves))
        answered = torch.autograd.grad(
            [y for _, y, *_ in pairs], [leaves[k] for k in wanted], [g for *_, g in pairs],
            retain_graph=True, allow_unused=True,
        )  # fmt: skip
        by_place = dict(zip(wanted, answered, strict=True))
        written = [k for k, _, given, handed in pairs if not same_bits(handed, given)]
        return Answer(tuple(by_place.get(k) for k in range(len(leaves))), (), tuple(written))
