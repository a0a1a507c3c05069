"""`python -m benchmarks.beside_gradcheck [--check]`: twelve faults, by three tools.

Each fault stands once, as forward, setup and backward; `pullback.check` and `gradcheck` are given
it as a `torch.autograd.Function`, `opcheck` as an operator of torch.library with that backward. A
tool has found a fault where it fails; lines are those that it then says, seconds its CPU time.
Every tool runs as it comes, without options, on the same inputs. Writes the table of docs/check.md
and benchmarks/results/beside_gradcheck.csv; `--check` says whether the table is that of the CSV.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.markers import check_or_write

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "beside_gradcheck.csv"
PAGE = ROOT / "docs" / "check.md"
TOOLS = ("pullback.check", "gradcheck", "opcheck")
FIELDS = ["fault", "tool", "found", "lines", "seconds", "said"]


def keep_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    """Saves the tensors among the inputs."""
    del output
    ctx.save_for_backward(*[value for value in inputs if isinstance(value, Tensor)])


class MeanForSum:
    """a mean where a sum is meant"""

    setup = staticmethod(keep_inputs)

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w, (g * x).mean(0)


class InPlace(MeanForSum):
    """the cotangent is changed in place"""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        by_w = (g * x).sum(0)
        return g.mul_(w), by_w


class WrongFlag(MeanForSum):
    """`needs_input_grad` is asked for the other input"""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0) if ctx.needs_input_grad[0] else None


class NoLeaf(MeanForSum):
    """no gradient where the input is no leaf"""

    @staticmethod
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.leaf = inputs[0].is_leaf
        keep_inputs(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w if ctx.leaf else None, (g * x).sum(0)


class Sine:
    """right"""

    setup = staticmethod(keep_inputs)

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()


class ReadsMemory(Sine):
    """the cotangent is read as contiguous memory"""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        if g.untyped_storage().nbytes() >= g.element_size() * g.numel():
            g = torch.as_strided(g, (g.numel(),), (1,)).view(g.shape)
        return g * x.cos()


class SharedBuffer(Sine):
    """what backward needs is kept on the class"""

    kept: dict[Any, Tensor] = {}  # noqa: RUF012 - the fault

    @staticmethod
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, output
        SharedBuffer.kept["x"] = inputs[0].detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * SharedBuffer.kept["x"].cos()


class LosesTail(Sine):
    """the entries beyond the last whole block of four get no gradient"""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        found = g * x.cos()
        whole = len(found) // 4 * 4
        return torch.cat([found[:whole], 0 * found[whole:]])


class HalfForSingle(Sine):
    """float32 is kept in bfloat16"""

    @staticmethod
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        (x,) = inputs
        ctx.save_for_backward(x.bfloat16() if x.dtype == torch.float32 else x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.to(g.dtype).cos()


class SavedConstant(Sine):
    """the second derivative is zero: what forward computed is a constant to backward"""

    @staticmethod
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.save_for_backward(inputs[0].cos())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0].detach()


class KeepsOutput(Sine):
    """the output is an attribute of its ctx: a cycle that is never freed"""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        del inputs
        ctx.output = output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.output


class ChangesInput(Sine):
    """forward changes its input, where no version counter sees it"""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        x.data.clamp_(min=1.0)
        return x.log()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g / ctx.saved_tensors[0]


class FromTheFront(Sine):
    """a dimension is counted from the front: wrong for batches"""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.flip(1).cumsum(1).flip(1)


@dataclass(frozen=True)
class Answer:
    """What a tool said: nothing where it found nothing."""

    lines: int
    seconds: float
    said: str


def entries(*shape: int) -> Tensor:
    """Positive entries, the same each time."""
    made = torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return (made + 0.5).requires_grad_()


FAULTS: dict[type, Callable[[], tuple[Tensor, ...]]] = {
    MeanForSum: lambda: (entries(4, 3), entries(3)),
    InPlace: lambda: (entries(4, 3), entries(3)),
    WrongFlag: lambda: (entries(4, 3), entries(3)),
    NoLeaf: lambda: (entries(4, 3), entries(3)),
    ReadsMemory: lambda: (entries(4, 3),),
    SharedBuffer: lambda: (entries(4, 3),),
    LosesTail: lambda: (entries(8),),
    HalfForSingle: lambda: (entries(4, 3),),
    SavedConstant: lambda: (entries(4, 3),),
    KeepsOutput: lambda: (entries(4, 3),),
    ChangesInput: lambda: (entries(4, 3),),
    FromTheFront: lambda: (entries(4, 3),),
}


def function_of(fault: Any) -> type[torch.autograd.Function]:
    """The fault as a Function."""
    made: Any = type(
        fault.__name__, (fault, torch.autograd.Function), {"setup_context": fault.setup}
    )
    made.__module__ = __name__
    return made


def operator_of(fault: Any) -> Any:
    """The fault as an operator."""
    made = torch.library.custom_op(
        f"beside_gradcheck::{fault.__name__}", fault.forward, mutates_args=()
    )
    made.register_fake(lambda x, *others: torch.empty_like(x))
    made.register_autograd(fault.backward, setup_context=fault.setup)
    return made


def ask(run: Callable[[], str]) -> Answer:
    """Run a tool that returns or raises what it has found."""
    started = time.process_time()
    try:
        said = run()
    except Exception as error:  # how a tool says it
        said = f"{type(error).__name__}: {error}"
    seconds = time.process_time() - started
    lines = [line for line in said.splitlines() if line.strip()]
    said = next((line for line in lines if ": broken. " in line), " ".join(lines[:2]))
    return Answer(len(lines), seconds, said[:200])


def by_pullback(fault: Any, inputs: tuple[Tensor, ...]) -> str:
    """What `pullback.check` finds; what a Function clearly lacks is no fault."""
    from pullback import check

    report = check(function_of(fault), *inputs)
    return "" if report.ok else str(report)


def by_gradcheck(fault: Any, inputs: tuple[Tensor, ...]) -> str:
    """What gradcheck finds."""
    torch.autograd.gradcheck(function_of(fault).apply, inputs)
    return ""


def by_opcheck(fault: Any, inputs: tuple[Tensor, ...]) -> str:
    """What opcheck finds."""
    torch.library.opcheck(operator_of(fault), inputs)
    return ""


def measure() -> list[dict[str, str]]:
    """One row for each fault and tool."""
    asked = dict(zip(TOOLS, (by_pullback, by_gradcheck, by_opcheck), strict=True))
    rows = []
    for tool, run in asked.items():
        ask(lambda run=run: run(Sine, (entries(2, 2),)))  # what is loaded at the first call
        for fault, inputs in FAULTS.items():
            given = inputs()
            answer = ask(lambda run=run, fault=fault, given=given: run(fault, given))
            print(f"{tool:<15} {fault.__name__:<15} {answer.lines:>3} {answer.seconds:.2f} s")
            rows.append({
                "fault": fault.__doc__ or "", "tool": tool,
                "found": "yes" if answer.lines else "no", "lines": str(answer.lines),
                "seconds": f"{answer.seconds:.2f}", "said": answer.said,
            })  # fmt: skip
    return rows


def table(rows: list[dict[str, str]]) -> str:
    """A line for each fault: found or not, lines, seconds."""
    lines = [
        f"| fault | {' | '.join(f'`{tool}`' for tool in TOOLS)} |",
        "| --- |" + " --- |" * len(TOOLS),
    ]
    for fault in dict.fromkeys(row["fault"] for row in rows):
        own = {row["tool"]: row for row in rows if row["fault"] == fault}
        lines.append(f"| {fault} | {' | '.join(cell(own[tool]) for tool in TOOLS)} |")
    counts = [sum(row["found"] == "yes" for row in rows if row["tool"] == tool) for tool in TOOLS]
    total = len(rows) // len(TOOLS)
    lines.append(f"| found | {' | '.join(f'**{count} of {total}**' for count in counts)} |")
    return "\n".join(lines)


def cell(row: dict[str, str]) -> str:
    """Whether a fault was found, in how many lines and seconds."""
    seconds = f"{float(row['seconds']):.1f} s"
    plural = "s" * (row["lines"] != "1")
    found = f"found, {row['lines']} line{plural}, {seconds}"
    return found if row["found"] == "yes" else f"no, {seconds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check_only = parser.parse_args().check
    if not check_only:
        warnings.simplefilter("ignore")
        rows = measure()
        with RESULTS.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    with RESULTS.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    check_or_write(
        PAGE, {"beside": table(rows)}, check_only, "python -m benchmarks.beside_gradcheck"
    )


if __name__ == "__main__":
    main()
