"""Put many questions to many Functions, and count."""

import collections
import gc
import inspect
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tests.tensor.hidden.circumstances import CIRCUMSTANCES, Asked, Circumstance
from tests.tensor.hidden.judge import Answer, Verdict, answer, compare, is_refusal, leak
from tests.tensor.hidden.questions import QUESTIONS, Question, every, inner, leaves, loss, stacked
from tests.tensor.hidden.source import Sample, draw, load, plain, unload

__all__ = ["Counts", "Failure", "run"]

_EAGER = [q for q in QUESTIONS if q.kind != "compiled"]
_COMPILED = [q for q in QUESTIONS if q.kind == "compiled"]
_FIRST = next(q for q in QUESTIONS if q.name == "first_order")
_EACH = 5  # questions to one Function
_AS_IT_IS = CIRCUMSTANCES[0]


@dataclass(frozen=True)
class Failure:
    """An answer that is neither right nor refused by name."""

    verdict: Verdict
    seed: str
    sample: Sample
    question: Question
    args: tuple[torch.Tensor, ...]
    directions: tuple[torch.Tensor, ...]
    circumstance: Circumstance
    got: str
    want: str

    def script(self) -> str:
        """A program of its own that shows it."""
        helpers = "\n".join(inspect.getsource(f) for f in (loss, inner, leaves, every, stacked))
        asked = inspect.getsource(self.question.ask)
        asked = asked[asked.index("def ") :]
        dtype = self.sample.dtype
        args = ", ".join(f"torch.tensor({a.tolist()}, dtype={dtype})" for a in self.args)
        directions = ", ".join(
            f"torch.tensor({a.tolist()}, dtype={dtype})" for a in self.directions
        )
        return (
            f"{self.sample.source()}\n"
            "from torch.autograd import forward_ad\n"
            "from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap\n"
            "Any, Tensors = object, object\n"
            f"{helpers}\n{asked}\n"
            "def f(*args):\n    y = F.apply(*args)\n"
            "    return y[0] if isinstance(y, tuple) else y\n\n"
            f"# asked {self.circumstance.name.replace('_', ' ')}\n"
            f"print({self.question.name}(f, ({args},), ({directions},)))\n"
            f"# got      {self.got}\n# expected {self.want}\n"
        )

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.sample.place}, {self.sample.way}, {self.sample.maths.name}, "
            f"{self.sample.dtype}, {self.question.name}, "
            f"{self.circumstance.name} (seed {self.seed})"
        )


@dataclass
class Counts:
    """Answers by hiding place, by question, way and circumstance, and those that failed."""

    by_place: dict[str, collections.Counter[str]] = field(default_factory=dict)
    by_question: dict[str, collections.Counter[str]] = field(default_factory=dict)
    by_way: dict[str, collections.Counter[str]] = field(default_factory=dict)
    by_circumstance: dict[str, collections.Counter[str]] = field(default_factory=dict)
    ordinary: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(
        self, sample: Sample, question: Question, circumstance: Circumstance, verdict: Verdict
    ) -> None:
        """Count one answer."""
        for table, key in (
            (self.by_place, sample.place),
            (self.by_question, question.name),
            (self.by_way, sample.way),
            (self.by_circumstance, circumstance.name),
        ):
            table.setdefault(key, collections.Counter())[verdict] += 1
        if sample.is_ordinary() and question.kind != "compiled":
            possible = sample.maths.formula is not None or question.kind == "reverse"
            self.ordinary[verdict] += possible

    def total(self, verdict: Verdict | None = None) -> int:
        """How many answers, of one verdict or of all."""
        return sum(
            count
            for counter in self.by_way.values()
            for name, count in counter.items()
            if verdict in (None, name)
        )

    def report(self) -> str:
        """The counts as a table."""
        lines = []
        for title, table in (
            ("place", self.by_place),
            ("question", self.by_question),
            ("way", self.by_way),
            ("circumstance", self.by_circumstance),
        ):
            lines.append(f"{title:<58}{'right':>8}{'refused':>9}{'wrong':>8}{'foreign':>9}")
            for key in sorted(table):
                row = table[key]
                lines.append(
                    f"{key:<58}{row['right']:>8}{row['refused']:>9}"
                    f"{row['wrong']:>8}{row['foreign']:>9}"
                )
            lines.append("")
        summary = ", ".join(
            f"{self.total(v)} {v}" for v in ("right", "refused", "wrong", "foreign")
        )
        usual = ", ".join(f"{count} {verdict}" for verdict, count in self.ordinary.items())
        return "\n".join([*lines, f"ordinary code: {usual}", f"{self.total()} answers: {summary}"])


def run(answers: int, seed: int | str, *, compiled: float = 0.01, keep: int = 200) -> Counts:
    """Ask until there are as many answers.

    Arguments:
        answers: how many.
        seed: of everything that is drawn.
        compiled: the part of the questions that compiles, which takes a hundred times as long.
        keep: how many failures to keep.
    """
    counts = Counts()
    number = 0
    while counts.total() < answers:
        mark = f"{seed}:{number}"
        number += 1
        rng = random.Random(mark)
        sample = draw(rng)
        questions = [_FIRST] if rng.random() < 0.2 else []
        while len(questions) < _EACH:
            questions.append(rng.choice(_COMPILED if rng.random() < compiled else _EAGER))
        for failure in ask(sample, questions, mark, counts):
            if len(counts.failures) < keep:
                counts.failures.append(failure)
    return counts


def ask(sample: Sample, questions: list[Question], seed: str, counts: Counts) -> list[Failure]:
    """Put some questions to one Function."""
    module = load(sample.source())
    apply = module.F.apply
    rng = random.Random(seed)

    def f(*args: Any) -> Any:
        y = apply(*args)
        return y[0] if isinstance(y, tuple) else y

    failures = []
    for question in questions:
        args, directions = _values(sample, rng), _values(sample, rng, kinks=False)
        circumstance = _circumstance(sample, question, rng)
        asked, reference = _reference(question, sample)
        if asked is None:
            continue
        want, same = _expected(asked, reference, args, directions, sample.dtype)
        if sample.is_stopped and want.values is None and asked.kind != "forward":
            continue  # torch has no gradient to differentiate
        if sample.maths.formula is None and want.values is None:
            want = Answer(None, None)
        elif want.values is None:
            raise RuntimeError(f"{question.name} of {sample.maths.name}: {want}")
        elif sample.dtype != torch.float64 and same.values is None:
            continue  # torch has no such kernel
        another = rng.choice(_EAGER)
        got = circumstance.ask(
            Asked(
                lambda args, q=question, v=directions: answer(q, f, args, v),
                lambda args, q=another, v=directions: answer(q, f, args, v),
                f,
                module,
                args,
            )
        )
        verdict = judge(got, want, same, sample, question)
        if verdict == "wrong" and torch.finfo(sample.coarsest).bits == 16:
            nearby = _nearby(asked, reference, args, directions, sample.coarsest)
            if any(judge(got, want, other, sample, question) == "right" for other in nearby):
                verdict = "right"
        if verdict == "foreign" and _is_torchs(got, question, sample, args, directions):
            verdict = "refused"
        if question.kind == "compiled":  # what a traceback keeps changes more when it goes
            gc.collect()
        left = leak()
        if left:
            verdict, got = "foreign", Answer(None, RuntimeError(f"left behind: {left}"))
        counts.add(sample, question, circumstance, verdict)
        if verdict in ("wrong", "foreign"):
            failures.append(
                Failure(
                    verdict,
                    seed,
                    sample,
                    question,
                    args,
                    directions,
                    circumstance,
                    str(got),
                    str(want),
                )
            )
    unload(module)
    return failures


def _circumstance(sample: Sample, question: Question, rng: random.Random) -> Circumstance:
    plainly = question.kind == "compiled" or rng.random() < 0.4
    chosen = _AS_IT_IS if plainly else rng.choice(CIRCUMSTANCES)
    narrow = torch.finfo(sample.coarsest).bits == 16  # which autocast widens for some operations
    return _AS_IT_IS if narrow and chosen.name == "under_autocast" else chosen


def _reference(question: Question, sample: Sample) -> tuple[Question | None, Any]:
    """The question whose answer is right, and of which function; ``None`` where none tells.

    Where backward holds a stop-gradient that its author wrote, torch's own answer is right, which
    has reverse mode alone. A tangent is the transpose of backward, so that a Hessian in forward
    mode is the one of reverse mode, row by row.
    """
    if not sample.is_stopped or question.name in _TANGENTS:
        return question, plain(sample.maths)
    name = dict(_EAGER_OF).get(question.name, question.name)
    asked = next(q for q in QUESTIONS if q.name == _IN_REVERSE.get(name, name))
    if asked.kind == "forward" and sample.maths.formula is not None:
        return None, None
    return asked, plain(sample.maths, stopped=True)


def judge(got: Answer, want: Answer, same: Answer, sample: Sample, question: Question) -> Verdict:
    """The verdict of one answer."""
    if got.error is not None:
        refused = is_refusal(got.error, question)
        return "refused" if refused and question.name != "first_order" else "foreign"
    return "right" if compare(got, want, same, sample.coarsest) else "wrong"


def _is_torchs(got: Answer, question: Question, sample: Sample, args: Any, directions: Any) -> bool:
    """Whether torch's compiler ends so with the Function as it would be published, too.

    Or, where torch does not trace that, with one that it traces: what is traced is differentiated
    once, and under the backend "eager" the second derivative is cut without a word.
    """
    if question.kind != "compiled":
        return False
    published = replace(sample, way="published")
    ended = _error_of(published, question, args, directions)
    compiler = torch._dynamo.exc.TorchDynamoException
    both = got.error, ended
    if type(got.error) is type(ended) or all(isinstance(it, compiler) for it in both):
        return True
    traced = _error_of(published.open(), question, args, directions)
    return type(got.error) is type(traced) and str(got.error) == str(traced)


def _error_of(
    sample: Sample, question: Question, args: Any, directions: Any
) -> BaseException | None:
    module = load(sample.source())

    def f(*args: Any) -> Any:
        y = module.F.apply(*args)
        return y[0] if isinstance(y, tuple) else y

    found = answer(question, f, args, directions)
    unload(module)
    return found.error


def _expected(
    question: Question, reference: Any, args: Any, directions: Any, dtype: torch.dtype
) -> tuple[Answer, Answer]:
    """What is right in float64, and what the reference itself gives in the dtype."""
    if question.kind == "compiled":
        eager = dict(_EAGER_OF)[question.name]
        question = next(q for q in QUESTIONS if q.name == eager)
    wide = [tuple(t.double() for t in tensors) for tensors in (args, directions)]
    want = answer(question, reference, *wide)
    if dtype == torch.float64:
        return want, want
    return want, answer(question, reference, args, directions)


def _nearby(
    question: Question, reference: Any, args: Any, directions: Any, dtype: torch.dtype
) -> Iterator[Answer]:
    """What the plain formula gives in its dtype for arguments that rounding cannot tell apart.

    One answer of a sum whose terms cancel may be close by chance.
    """
    generator = torch.Generator().manual_seed(1)
    eps = torch.finfo(dtype).eps
    for _ in range(8):
        moved = [
            tuple(t * (1 + eps * torch.randn(t.shape, generator=generator)).to(t) for t in tensors)
            for tensors in (args, directions)
        ]
        yield _expected(question, reference, *moved, dtype)[1]


# First order in forward mode, where a stop-gradient in backward changes nothing.
_TANGENTS = ("func_jvp", "func_jacfwd", "func_linearize", "dual_numbers", "compile_jvp")
# Second order in forward mode, and the same matrix in reverse mode.
_IN_REVERSE = {
    "func_hessian": "func_jacrev_of_jacrev",
    "func_hessian_without_gradients": "func_jacrev_of_jacrev",
    "jacfwd_of_jacfwd": "func_jacrev_of_jacrev",
    "jacfwd_of_jacfwd_without_gradients": "func_jacrev_of_jacrev",
    "jacrev_of_jacfwd": "func_jacrev_of_jacrev",
    "hessian_in_forward_mode_of_functional": "func_jacrev_of_jacrev",
}
# A compiled question and the one whose answer it has to equal.
_EAGER_OF = (
    ("compile_forward_and_backward", "first_order"),
    ("compile_grad", "func_grad"),
    ("compile_grad_of_grad", "func_grad_of_grad"),
    ("compile_jvp", "func_jvp"),
    ("compile_jacfwd", "func_jacfwd"),
    ("compile_hessian", "func_hessian"),
    ("compile_vmap_of_grad", "vmap_of_grad"),
    ("compile_then_twice", "grad_of_grad"),
)


def _values(sample: Sample, rng: random.Random, *, kinks: bool = True) -> tuple[torch.Tensor, ...]:
    at_kinks = kinks and bool(sample.maths.kinks) and rng.random() < 0.5

    def one() -> float:
        return rng.choice(sample.maths.kinks) if at_kinks else rng.uniform(0.55, 1.45)

    return tuple(
        torch.tensor([one() for _ in range(3)], dtype=sample.dtype) for _ in sample.maths.arguments
    )
