"""What one rank does: it joins the group, makes its arguments, and runs what it is asked to run.

A rank is a copy of the process that asks. It talks with the other ranks by the checked code alone,
so that nothing of ours waits among them; it writes down each collective before it enters it, by
which one sees where it waits.
"""

import mmap
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pullback.conformance._arguments import Arguments, is_continuous
from pullback.conformance._failure import classify, describe
from pullback.conformance._guard import reseed
from pullback.conformance._subject import Subject
from pullback.conformance._tree import tensors
from pullback.conformance._values import same_bits
from pullback.internal.torch import TorchDispatchMode

__all__ = ["Answer", "Board", "Described", "Rank", "Request"]

_COLLECTIVES = ("c10d", "_c10d_functional")
# What torch.distributed calls the operators of its process groups.
_NAMES = {
    "allreduce_": "all_reduce", "allgather_": "all_gather", "alltoall_": "all_to_all",
    "_allgather_base_": "all_gather_into_tensor", "alltoall_base_": "all_to_all_single",
    "_reduce_scatter_base_": "reduce_scatter_tensor", "recv_any_source_": "recv",
}  # fmt: skip
_BOARD = 2**14  # bytes
_GRAPHS = 4  # of runs that are kept for a backward


@dataclass(frozen=True)
class Request:
    """What a rank is asked to run: forward, or backward through the last forward of a number.

    Arguments:
        graph: the number of the forward run.
        values: every tensor of the arguments, for forward.
        needs: which of them require a gradient.
        cotangents: one for each output, or ``None``, for backward.
        late: seconds that the rank comes late.
        linger: seconds that it pauses after it has entered a collective.
    """

    graph: int
    values: Sequence[torch.Tensor] | None = None
    needs: Sequence[bool] = ()
    cotangents: Sequence[torch.Tensor | None] = ()
    late: float = 0.0
    linger: float = 0.0


@dataclass(frozen=True)
class Described:
    """The tensors among the arguments of a rank, as `Arguments` has them."""

    values: tuple[torch.Tensor, ...] = ()
    paths: tuple[str, ...] = ()
    differentiable: tuple[int, ...] = ()
    declared: bool = False


@dataclass(frozen=True)
class Answer:
    """What a run gave.

    Arguments:
        found: every output tensor; the gradient of each tensor of the arguments, or ``None``.
        needs: which outputs require a gradient.
        written: the tensors handed over that hold other numbers now, by position.
    """

    found: tuple[torch.Tensor | None, ...] = ()
    needs: tuple[bool, ...] = ()
    written: tuple[int, ...] = ()


class Board:
    """Memory that a rank shares with the process that asks: the collectives entered so far."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BOARD)

    def clear(self) -> None:
        """Forget what was entered."""
        self._memory[:] = bytes(_BOARD)

    def write(self, name: str) -> None:
        """Add a collective, before it is entered."""
        line = f"{name}\n".encode()
        start = self._memory.find(b"\0")
        if start + len(line) < _BOARD:  # what is written last may be lost, of hundreds
            self._memory[start : start + len(line)] = line

    def is_empty(self) -> bool:
        """Whether none was entered."""
        return self._memory[0] == 0

    def read(self) -> list[str]:
        """The names, in order."""
        return self._memory[:].rstrip(b"\0").decode().splitlines()


class _Watch(TorchDispatchMode):
    """Writes down each operator of a process group before it is entered."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self.board, self.linger = board, 0.0


def _watched(watch: Any, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    if operator.namespace not in _COLLECTIVES:
        return operator(*args, **(kwargs or {}))
    name = operator.overloadpacket.__name__
    watch.board.write(_NAMES.get(name, name.strip("_")))
    found = operator(*args, **(kwargs or {}))
    time.sleep(watch.linger)
    return found


# Not in the class statement, which hides it from Dynamo, and loads that: seconds for each rank.
_Watch.__torch_dispatch__ = _watched


class Rank:
    """One rank.

    Arguments:
        number: which one, from 0.
        count: how many there are.
        subject: what is checked.
        make: its arguments, or ``None`` where it takes no part.
        seed: seeds every run.
        connection: to the process that asks.
        board: takes the collectives that it enters.
    """

    def __init__(  # noqa: PLR0917 - all that a copy takes over
        self, number: int, count: int, subject: Subject,
        make: Callable[[int], Arguments | None], seed: int, connection: Connection,
        board: Board,
    ) -> None:  # fmt: skip
        self._number, self._count, self._subject = number, count, subject
        self._make, self._seed, self._connection = make, seed, connection
        self._board = board
        self._arguments: Arguments | None = None
        self._graphs: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def run(self, folder: Path) -> None:
        """Join the group that meets in a folder, and answer until nobody asks any more."""
        torch.set_num_threads(1)
        known = {"RANK": self._number, "WORLD_SIZE": self._count, "LOCAL_RANK": self._number,
                 "LOCAL_WORLD_SIZE": self._count}  # fmt: skip
        os.environ.update({name: str(value) for name, value in known.items()})
        store = dist.FileStore(str(folder / "store"), self._count)
        dist.init_process_group(
            "gloo", store=store, rank=self._number, world_size=self._count
        )  # fmt: skip
        watch = _Watch(self._board)
        self._reply(self._describe)
        while True:
            try:
                request = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - of our own
            except EOFError:
                return
            self._board.clear()
            time.sleep(request.late)
            watch.linger = request.linger
            with watch:
                self._reply(lambda request=request: self._answer(request))

    def _reply(self, work: Callable[[], object]) -> None:
        try:
            self._say("answer", work())
        except BaseException as error:  # the checked code may raise anything
            self._say("raised", (describe(error), classify(error, transform=False)))

    def _say(self, kind: str, value: object) -> None:
        # Not by `send`: torch would hand over tensors as memory that ends with the copy.
        self._connection.send_bytes(pickle.dumps((kind, value)))

    def _describe(self) -> Described:
        found = self._arguments = self._make(self._number)
        if found is None:
            return Described()
        return Described(found.values, found.paths, found.differentiable, found.declared)

    def _answer(self, request: Request) -> Answer:
        if self._arguments is None:
            return Answer()
        if request.values is None:
            return self._backward(request)
        return self._forward(self._arguments, request)

    def _forward(self, arguments: Arguments, request: Request) -> Answer:
        values = list(request.values or ())
        moving = [k for k, value in enumerate(values) if is_continuous(value)]
        leaves = [
            value.clone().requires_grad_(needs)
            for value, needs in zip(values, request.needs, strict=True)
        ]
        there = replace(arguments, values=tuple(values), detached=True)
        reseed(self._seed)
        args, kwargs = there.with_differentiable(moving).build([leaves[k] for k in moving])
        handed = tensors((args, kwargs))
        outputs = tensors(self._subject.call(*args, **kwargs))
        self._graphs[request.graph] = (outputs, leaves)
        while len(self._graphs) > _GRAPHS:
            del self._graphs[min(self._graphs)]
        returned = {id(output) for output in outputs}  # an input marked dirty is
        written = [
            k for k, (tensor, value) in enumerate(zip(handed, values, strict=True))
            if id(tensor) not in returned and not same_bits(tensor, value)
        ]  # fmt: skip
        found = tuple(output.detach() for output in outputs)
        return Answer(found, tuple(y.requires_grad for y in outputs), tuple(written))

    def _backward(self, request: Request) -> Answer:
        outputs, leaves = self._graphs[request.graph]
        pairs = [
            (k, y, g.clone())
            for k, (y, g) in enumerate(zip(outputs, request.cotangents, strict=True))
            if g is not None and y.requires_grad
        ]
        wanted = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
        if not (pairs and wanted):
            return Answer((None,) * len(leaves))
        answered = torch.autograd.grad(
            [y for _, y, _ in pairs], [leaves[k] for k in wanted], [g for *_, g in pairs],
            retain_graph=True, allow_unused=True,
        )  # fmt: skip
        by_place = dict(zip(wanted, answered, strict=True))
        written = [k for k, _, g in pairs if not same_bits(g, request.cotangents[k])]  # type: ignore[arg-type]
        return Answer(tuple(by_place.get(k) for k in range(len(leaves))), (), tuple(written))
