"""A number, a tensor and a text flow back together through one graph.

    python examples/tape_numbers_and_text.py [picture.svg]

A reply is written from an instruction (a text); a rule program scores it with weights (a tensor)
that torch made, at a strictness (a number). One backward gives the number and the tensor their
exact gradients, and the instruction the feedback on what was missing, with its origin. The graph
is printed as a tree and drawn, with Graphviz's `dot` where it is installed.
"""

import shutil
import subprocess
import sys

import torch

from pullback.tape import Function, Variable, graph
from pullback.tape.tensor import from_torch

CRITERIA = ("greeting", "date", "signature")
SIGNS = ("Dear", "on Monday", "Yours")


class Write(Function):
    """Writes a reply: one sentence for each thing that the instruction asks for."""

    @staticmethod
    def forward(ctx, instruction):
        ctx.save_for_backward(instruction)
        asked = [s for c, s in zip(CRITERIA, SIGNS, strict=True) if c in instruction.data]
        return Variable(", ".join([*asked, "we have your order"]), role="reply")

    @staticmethod
    def backward(ctx, feedback):
        (instruction,) = ctx.saved_variables
        missing = [c for c in CRITERIA if c in feedback.data and c not in instruction.data]
        if missing:
            return Variable(f"Ask for: {', '.join(missing)}.", role="feedback to the instruction")
        return None


class Score(Function):
    """The weighted share of the criteria that a reply meets, to the power of the strictness."""

    @staticmethod
    def forward(ctx, reply, weights, strictness):
        met = torch.tensor([float(sign in reply.data) for sign in SIGNS], dtype=torch.float64)
        share = Variable(float(weights.data @ met))
        ctx.save_for_backward(weights, strictness, share)
        ctx.met = met
        score = share**strictness
        score.role = "score"
        return score

    @staticmethod
    def backward(ctx, slope):
        _, strictness, share = ctx.saved_variables
        unmet = [c for c, met in zip(CRITERIA, ctx.met.tolist(), strict=True) if not met]
        outer = slope * strictness * share ** (strictness - 1)
        to_strictness = slope * share**strictness * torch.log(torch.tensor(share.data)).item()
        return (
            Variable(f"The reply lacks: {', '.join(unmet)}.", role="feedback to the reply"),
            Variable(ctx.met * outer.data),
            to_strictness,
        )


def main(path: str | None) -> None:
    instruction = Variable(
        "Write with a greeting and a date.", role="instruction", requires_grad=True
    )
    raw = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    weights = from_torch(torch.softmax(raw, 0), role="weights")
    strictness = Variable(2.0, role="strictness", requires_grad=True)

    reply = Write.apply(instruction)
    score = Score.apply(reply, weights, strictness)
    loss = 1 - score
    loss.backward(retain_graph=True)

    print(f"reply        {reply.data!r}")
    print(f"score        {score.data:.4f}")
    print(f"strictness   gradient {strictness.grad.data:+.4f}")
    print(f"raw weights  gradient {[round(g, 4) for g in raw.grad.tolist()]} (torch's own leaf)")
    for note in instruction.grad:
        print(f"instruction  {note.data!r} from {note.origin.function} on the {note.origin.role}")
    print()
    print(graph.summary(loss))
    if path is not None:
        draw(graph.to_dot(loss), path)


def draw(dot: str, path: str) -> None:
    """Draw the graph with Graphviz, or leave its description beside where it would be."""
    if shutil.which("dot") is None:
        path = f"{path}.dot"
        with open(path, "w", encoding="utf-8") as file:
            file.write(dot)
    else:
        subprocess.run(
            ["dot", f"-T{path.rpartition('.')[2]}", "-o", path], input=dot.encode(), check=True
        )
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
