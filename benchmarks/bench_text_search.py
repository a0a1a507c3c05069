"""Search over rule lists on scikit-learn's data, beside random search, gepa and textgrad.

    PYTHONPATH=src .text-venv/bin/python -m benchmarks.bench_text_search

No model is asked. The "model" follows a list of rules, ``proline > 755 -> 0``; feedback names the
samples that a list gets wrong; the "writer" puts one rule before the list that would have got some
of them right. So this shows the mechanics of engines and optimisers: whether feedback arrives, how
a budget is spent, whether a text ends below its start. It shows nothing about models. All have the
same writer, told of as many samples, and the same budget, in evaluations of a sample. Random search
has no feedback but that, and textgrad no validation of its own: what scores better is kept of both.
The accuracy is on samples that no search has seen.
"""

import csv
import os
import random
import re
import statistics
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.model_selection import train_test_split

from pullback import text
from pullback.text.lm import Scripted
from pullback.text.optim import TGD, Pareto, Validated
from pullback.text.train import Measure

os.environ.setdefault("TEXTGRAD_LOG_DIR", tempfile.mkdtemp())
os.environ.setdefault("OPENAI_API_KEY", "none")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
RESULTS = Path(__file__).parent / "results" / "text_search.csv"
SEEDS = range(int(os.environ.get("SEEDS", "20")))
HELD, BATCH, PROPOSALS = 40, 8, 30
BUDGET = HELD + PROPOSALS * (BATCH + HELD)
RULE = re.compile(r"(\w+) (<=|>) (-?[\d.e+-]+) -> (\d+)")
WRONG = re.compile(r"got (\d+), expected (\d+): ([^;\n]*);")


class Task:
    """One data set in three parts, and what may be done with a list of rules on it."""

    def __init__(self, load, seed):
        data = load()
        self.names = [re.sub(r"\W+", "_", str(name)) for name in data.feature_names]
        rows = list(zip(data.data.tolist(), data.target.tolist(), strict=True))
        rest, self.test = train_test_split(rows, test_size=0.34, random_state=seed)
        self.train, self.held = train_test_split(rest, test_size=HELD, random_state=seed)
        classes = [label for _, label in self.train]
        self.classes = sorted(set(classes))
        self.start = f"else -> {max(self.classes, key=classes.count)}"
        self.dice = random.Random(seed)

    def classify(self, rules, row):
        for name, sign, value, label in RULE.findall(rules):
            held = row[self.names.index(name)] > float(value)
            if held == (sign == ">"):
                return int(label)
        return int(rules.rsplit("else -> ", 1)[1].split()[0])

    def said(self, rules, row, label):
        got = self.classify(rules, row)
        values = " ".join(f"{value:.6g}" for value in row)
        return "" if got == label else f"got {got}, expected {label}: {values};"

    def accuracy(self, rules):
        return statistics.mean(self.classify(rules, row) == label for row, label in self.test)

    def score(self, rules):
        """How many of the held samples are right."""
        return sum(not self.said(rules, *sample) for sample in self.held)

    def rewrite(self, rules, feedback):
        """One more rule: it holds of all samples of one class that the feedback calls wrong."""
        wrong = [
            (label, [float(v) for v in row.split()]) for _, label, row in WRONG.findall(feedback)
        ]
        if not wrong:
            return rules
        label = self.dice.choice(wrong)[0]
        rows = np.array([row for each, row in wrong if each == label])
        number = self.dice.randrange(len(self.names))
        if self.dice.random() < 0.5:
            limit = f"> {np.nextafter(rows[:, number].min(), -np.inf) - 1e-6:.6g}"
        else:
            limit = f"<= {rows[:, number].max() + 1e-6:.6g}"
        return f"{self.names[number]} {limit} -> {label}\n{rules}"


class Rules(text.Module):
    def __init__(self, task):
        self.task = task
        self.rules = text.Parameter(task.start, role="rules")

    def forward(self, row, label):
        told = text.map_python(
            lambda rules: self.task.said(rules, row, label), self.rules, purpose="classify"
        )
        return text.deterministic(told, None, lambda said, _: not said, "no complaint")


def metric(module, sample):
    return module(*sample)


def writer(task):
    def answer(request):
        asked = request.messages[-1].text
        rules = re.search(r"<TEXT (\w+)>\n(.*?)\n</TEXT \1>", asked, re.DOTALL).group(2)
        return f"<IMPROVED>{task.rewrite(rules, asked)}</IMPROVED>"

    return answer


def random_search(task):
    """The same writer, told of the same number of samples; whatever scores better is kept."""
    rules, spent = task.start, HELD
    best = task.score(rules)
    while spent + BATCH + HELD <= BUDGET:
        told = [task.said(rules, *sample) for sample in task.dice.sample(task.train, BATCH)]
        new = task.rewrite(rules, " ".join(told))
        spent += BATCH + HELD
        score = task.score(new)
        if score > best:
            best, rules = score, new
    return rules, spent


def validated(task, risk=1.0, confirm=1.0):
    module = Rules(task)
    here, rest = (task.held, []) if confirm == 1.0 else (task.held[::2], task.held[1::2])
    measure = Measure(module, metric, here, at_once=1)
    final = Measure(module, metric, rest, at_once=1) if rest else None
    tgd = TGD(module.parameters(), Scripted(writer(task)), limit=100_000)
    optimizer = Validated(tgd, measure, final=final, confirm=confirm, risk=risk)
    spent = 2 * len(rest)
    while spent + measure.evaluations + BATCH + len(here) <= BUDGET:
        optimizer.zero_grad()
        for sample in task.dice.sample(task.train, BATCH):
            module(*sample).backward()
        spent += BATCH
        optimizer.step()
    optimizer.finish()
    return module.rules.data, spent + measure.evaluations


def pareto(task):
    module = Rules(task)
    tgd = TGD(module.parameters(), Scripted(writer(task)), limit=100_000)
    search = Pareto(
        module, tgd, metric, task.train, task.held, evaluations=BUDGET, minibatch=BATCH, risk=1.0,
        seed=task.dice.randrange(2**31),
    )  # fmt: skip
    search.run()
    return module.rules.data, search.program.evaluations


def gepa_alone(task):
    import gepa

    spent = 0

    class Adapter:
        propose_new_texts = None

        def evaluate(self, batch, candidate, capture_traces=False):
            nonlocal spent
            spent += len(batch)
            said = [task.said(candidate["rules"], *sample) for sample in batch]
            scores = [float(not each) for each in said]
            return gepa.EvaluationBatch(
                outputs=said, scores=scores, trajectories=said if capture_traces else None
            )

        def make_reflective_dataset(self, candidate, evaluated, components):
            return {"rules": [{"Feedback": each} for each in evaluated.trajectories if each]}

    def reflect(prompt):
        rules = prompt.split("```\n", 1)[1].split("\n```", 1)[0]
        return f"```\n{task.rewrite(rules, prompt)}\n```"

    result = gepa.optimize(
        seed_candidate={"rules": task.start}, trainset=task.train, valset=task.held,
        adapter=Adapter(), reflection_lm=reflect, reflection_minibatch_size=BATCH,
        max_metric_calls=BUDGET, seed=task.dice.randrange(2**31),
        logger=type("Silent", (), {"log": lambda self, message: None})(),
    )  # fmt: skip
    return result.best_candidate["rules"], spent


def textgrad_alone(task):
    import textgrad
    from textgrad.autograd.string_based_ops import StringBasedFunction
    from textgrad.engine import EngineLM

    class Engine(EngineLM):
        model_string, system_prompt = "script", ""

        def __init__(self):
            pass

        def generate(self, prompt, system_prompt=None, **kwargs):
            if "<IMPROVED_VARIABLE>" in (system_prompt or ""):
                feedback = prompt.split("<FEEDBACK>", 1)[-1]
                improved = task.rewrite(rules.value, feedback)
                return f"<IMPROVED_VARIABLE>{improved}</IMPROVED_VARIABLE>"
            return (WRONG.search(prompt) or [""])[0]

        __call__ = generate

    engine = Engine()
    textgrad.logger.disabled = True
    textgrad.set_backward_engine(engine, override=True)
    rules = textgrad.Variable(task.start, role_description="rules", requires_grad=True)
    optimizer = textgrad.TextualGradientDescent([rules], engine=engine)
    spent, best = HELD, task.score(task.start)
    while spent + BATCH + HELD <= BUDGET:
        optimizer.zero_grad()
        before, losses = rules.value, []
        for row, label in task.dice.sample(task.train, BATCH):
            step = StringBasedFunction(
                lambda rules, row=row, label=label: task.said(rules.value, row, label) or "right",
                "classify",
            )
            losses.append(step({"rules": rules}, response_role_description="complaint"))
        spent += BATCH
        for loss in losses:
            loss.backward()
        optimizer.step()
        spent += HELD
        score = task.score(rules.value)  # textgrad's own examples revert what validates worse
        if score > best:
            best = score
        else:
            rules.set_value(before)
    return rules.value, spent


SEARCHES = {
    "random search": random_search,
    "pullback Validated(TGD), what scores better": validated,
    "pullback Validated(TGD), what is shown to be better": lambda task: validated(task, 0.025),
    "pullback Validated(TGD), what is shown at the end": lambda task: validated(
        task, confirm=0.025
    ),
    "pullback Pareto (through gepa)": pareto, "gepa": gepa_alone, "textgrad": textgrad_alone,
}  # fmt: skip


def main() -> None:
    rows = []
    for load in (load_iris, load_wine, load_breast_cancer):
        for name, search in SEARCHES.items():
            found, starts, spent = [], [], []
            try:
                for seed in SEEDS:
                    task = Task(load, seed)
                    starts.append(task.accuracy(task.start))
                    rules, used = search(task)
                    found.append(task.accuracy(rules))
                    spent.append(used)
            except ImportError:
                continue
            rows.append((
                load.__name__.removeprefix("load_"), name, f"{statistics.mean(starts):.3f}",
                f"{statistics.mean(found):.3f}", *interval(found),
                sum(now < then for now, then in zip(found, starts, strict=True)), max(spent),
            ))  # fmt: skip
            print(*rows[-1], flush=True)
            write(rows)


def interval(found: list[float]) -> tuple[str, str]:
    """Where the mean lies with 95 % confidence, over seeds."""
    low, high = stats.t.interval(
        0.95, len(found) - 1, loc=statistics.mean(found), scale=stats.sem(found)
    )
    return f"{low:.3f}", f"{high:.3f}"


def write(rows: list[tuple]) -> None:
    head = ("data", "search", "start", "mean", "low", "high", "below start", "evaluations")
    with RESULTS.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


if __name__ == "__main__":
    main()
