"""A model that misbehaves, everywhere: too many failures raise alone, nothing is paid twice."""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.fuzzing import examples, spread
from tests.text.helpers import answering
from tests.text.misbehaving import is_fault
from tests.text.test_train import DATA, Spam, label

from pullback import tape
from pullback.errors import ArgumentError, BudgetError, ModelError, RecordingError, ReplyError
from pullback.tape import Variable
from pullback.text import (
    ChatModule,
    Failure,
    Parameter,
    chat,
    deterministic,
    exact_match,
    judge,
    tolerate,
)
from pullback.text.lm import (
    Account,
    Budget,
    Cached,
    Journal,
    Misbehaving,
    Record,
    Replay,
    Retry,
    Run,
    Scripted,
)
from pullback.text.optim import TGD, Pareto, Validated, max_length
from pullback.text.train import DataLoader, Measure, Trainer

SHARE = 0.05


def pipeline(seed, share=SHARE, kinds=None, **more):
    """The pipeline of the tests of training, over a model that misbehaves as every other does."""
    bad = lambda inner: Misbehaving(inner, share, seed, kinds, silence=0.01)  # noqa: E731
    writer = bad(Scripted(lambda request: "<IMPROVED>Odd is spam: odd.</IMPROVED>"))
    module = Spam(writer, held=DATA * 2, **more)
    module.classify.lm = bad(answering(label))
    return module


def test_each_kind_is_met_and_is_the_same_for_the_same_place_and_seed():
    def met(seed):
        lm = Misbehaving(Scripted(lambda request: "fine"), 0.5, seed, silence=0.0)
        found = []
        for number in range(200):
            try:
                found.append(lm(f"{number}").text[:40])
            except ModelError as error:
                found.append(error.what)
        return found, lm.met

    found, kinds = met(1)
    assert (found, kinds) == met(1) != met(2)
    assert set(kinds) == set(Misbehaving.KINDS)
    assert 70 < kinds.total() < 130
    for options in ({"share": 2}, {"kinds": ["rude"]}, {"kinds": []}):
        with pytest.raises(ArgumentError):
            Misbehaving(Scripted(["x"]), **options)


def test_a_stream_is_spoilt_as_a_whole_answer_is():
    inner = Scripted(lambda request: "one two three")
    for kind in ("cut off", "empty", "refused"):
        lm = Misbehaving(inner, 1.0, kinds=[kind])
        chunks = list(lm.stream("x"))
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].completion.text == lm("x").text
    with pytest.raises(ModelError):
        list(Misbehaving(inner, 1.0, kinds=["dropped"]).stream("x"))


def fit(bad, seed, tmp_path):
    module = pipeline(seed, 0.1, bad.kinds, risk=1.0)
    result = Trainer(2, max_failures=1.0).fit(module, DataLoader(DATA, 4), DataLoader(DATA, 4))
    assert result.stopped == "2 epochs are done"


def rewritten(bad, seed, tmp_path):
    prompt = Parameter("Say {word}.", role="prompt")
    prompt.grad = [Variable("be polite")]
    writer = bad(Scripted(lambda request: "<IMPROVED>Please say it.</IMPROVED>"))
    with tolerate(1.0), contextlib.suppress(ReplyError, ModelError):
        TGD([prompt], writer, constraints=[max_length(60)]).step()
    assert len(prompt.data) <= 60


def searched(bad, seed, tmp_path):
    pytest.importorskip("gepa")
    module = pipeline(seed, 0.1, bad.kinds)
    writer = TGD(module.parameters(), module.writer)
    metric = lambda m, s: exact_match(m(s[0]), s[1])  # noqa: E731
    search = Pareto(module, writer, metric, DATA[:4], DATA, evaluations=60, risk=1.0,
                    max_failures=1.0)  # fmt: skip
    search.run()
    assert search.stopped


def judged(bad, seed, tmp_path):
    lm = bad(Scripted(lambda request: '{"score": 0.5, "explanation": "half"}'))
    texts = Variable([f"text {n}" for n in range(16)], "texts", requires_grad=True)
    with tolerate(1.0):
        evaluation = judge(lm, "Is it good?", texts, retries=1)
        evaluation.backward()
    assert 0.0 <= evaluation.score.data <= (0.5 if "markers" not in bad.kinds else 1.0)


def evaluated(bad, seed, tmp_path):
    label_of = ChatModule(bad(answering(label)), "Classify: odd.", "{mail}", role="label")
    with tolerate(1.0) as failures:
        batch = tape.vmap(lambda mail: label_of(mail=mail))([mail for mail, _ in DATA])
        wanted = [want for _, want in DATA]
        evaluation = deterministic(batch, wanted, lambda p, t: float(p == t), "exact match")
        evaluation.backward()
    wrong = sum(given != want for given, want in zip(batch.data, wanted, strict=True))
    assert evaluation.score.data == pytest.approx(1 - wrong / len(DATA))
    assert bool(label_of.system.grad) <= bool(wrong)
    assert len(failures.causes) <= failures.asked


def measured(bad, seed, tmp_path):
    module = pipeline(seed, 0.1, bad.kinds)
    measure = Measure(module, lambda m, s: exact_match(m(s[0]), s[1]), DATA)
    with tolerate(1.0):
        assert measure.scores() == measure.scores()
    assert measure.evaluations == len(DATA)


def recorded(bad, seed, tmp_path):
    def answers(lm):
        for number in range(8):
            try:
                yield lm(f"mail {number}").text
            except (ModelError, RecordingError):
                yield None

    path = tmp_path / "run.sqlite"
    with Journal(path) as journal:
        first = list(answers(Record(bad(answering(lambda request: "fine")), journal)))
    with Journal(path) as journal:
        assert list(answers(Replay(journal, model="scripted"))) == first


def cached(bad, seed, tmp_path):
    inner = bad(Scripted(lambda request: "fine"))
    lm = Cached(inner)
    for _ in range(20):
        with contextlib.suppress(ModelError):
            known = lm("x").text
            assert lm("x").text == known  # what failed is asked again; what is known is not
            break
    assert inner.met.total() <= 20


def budgeted(bad, seed, tmp_path):
    lm = Budget(bad(Scripted(lambda request: "fine")), calls=9)
    for number in range(20):
        with contextlib.suppress(ModelError, BudgetError):
            lm(f"{number}")
    assert lm.account.spent.calls <= 9
    assert lm.account.reserved.calls == 0


PROGRAMS = [fit, rewritten, searched, judged, evaluated, measured, recorded, cached, budgeted]
MET = list(itertools.product(PROGRAMS, Misbehaving.KINDS))


class Bad:
    """Wraps a model so that it misbehaves in one way, in a third of its answers."""

    def __init__(self, kind, seed):
        self.kinds, self.seed = [kind], seed

    def __call__(self, inner):
        return Misbehaving(inner, 0.3, self.seed, self.kinds, silence=0.001)


@pytest.mark.parametrize(
    ("program", "kind"), spread(MET, 5), ids=lambda v: v if isinstance(v, str) else v.__name__
)
def test_no_program_ends_by_what_a_model_does(program, kind, tmp_path):
    for seed in range(1 if len(spread(MET, 5)) < len(MET) else 5):
        where = tmp_path / str(seed)
        where.mkdir()
        program(Bad(kind, seed), seed, where)


def test_all_kinds_at_once_in_every_optimiser():
    met = Counter()
    for seed in range(examples(2)):
        module = pipeline(seed, risk=1.0)
        result = Trainer(2, max_failures=0.5).fit(module, DataLoader(DATA, 4))
        assert result.stopped == "2 epochs are done"
        met += module.classify.lm.met
    assert met.total() > 3


def test_a_budget_holds_and_retries_are_drawn_anew(tmp_path):
    for seed in range(examples(1)):
        module = pipeline(seed, 0.3, risk=1.0)
        module.classify.lm = Retry(module.classify.lm, wait=0.0, attempts=3)
        account = Account(calls=60)
        with (
            Run(tmp_path / f"{seed}.sqlite", account=account) as run,
            contextlib.suppress(BudgetError),
        ):
            Trainer(3, max_failures=1.0).fit(module, DataLoader(DATA, 4))
        assert run.account.spent.calls <= 60
        with Journal(tmp_path / f"{seed}.sqlite") as journal:
            assert sum(call.answer is not None for call in journal.calls()) <= 60


def work(path, out, seed):
    """One run to its end: what it found, written whole."""
    module = pipeline(seed, risk=1.0)
    paid = Scripted(answering(label)._answers, delay=0.001)
    module.classify.lm = Misbehaving(paid, SHARE, seed, silence=0.01)
    with Run(path) as run, tape.concurrency(8):
        result = Trainer(2, max_failures=1.0).fit(module, DataLoader(DATA, 4))
        score = Measure(module, lambda m, s: exact_match(m(s[0]), s[1]), DATA, at_once=8)()
    found = {"score": score, "state": module.state_dict(), "failures": len(result.failures),
             "calls": run.paid + run.recorded, "history": result.history}  # fmt: skip
    with open(f"{out}.part", "w") as file:
        json.dump(found, file)
    os.replace(f"{out}.part", out)


def kill(path, out, seed, limit):
    """Run in a process of its own, killed after a while; whether it was."""
    child = multiprocessing.get_context("fork").Process(target=work, args=(path, out, seed))
    child.start()
    child.join(limit)
    killed = child.is_alive()
    if killed:
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    return killed


def test_killed_at_random_the_score_is_that_of_a_run_that_was_not(tmp_path):
    """Two kills here, at least; a hundred in two rounds of `make fuzz`."""
    kills, seed, enough = 0, 0, examples(2)
    while kills < enough:
        whole = tmp_path / f"whole-{seed}.json"
        begin = time.monotonic()
        assert not kill(tmp_path / f"whole-{seed}.sqlite", whole, seed, 60)
        span = time.monotonic() - begin
        out, path = tmp_path / f"{seed}.json", tmp_path / f"{seed}.sqlite"
        dice = random.Random(seed)
        while not out.exists():
            limit = dice.uniform(0.2, 0.9) * span if kills < enough else 60
            kills += kill(path, out, seed, limit)
        assert json.loads(out.read_text()) == json.loads(whole.read_text()), f"seed {seed}"
        with Journal(path) as journal, Journal(tmp_path / f"whole-{seed}.sqlite") as other:
            places = [(call.place, call.digest, call.occurrence) for call in journal.calls()]
            wanted = [(call.place, call.digest, call.occurrence) for call in other.calls()]
        assert sorted(places) == sorted(wanted), f"seed {seed}: something was paid twice"
        seed += 1


HERE = Path(__file__).parent
WRITTEN_FOR_GOOD_MODELS = [
    "test_train.py", "test_optim.py", "test_evaluation.py", "test_chat.py", "test_pareto.py",
    "test_better.py", "test_failures.py", "test_module.py", "lm/test_budget.py",
    "lm/test_journal.py", "lm/test_places.py", "test_broken_programs.py", "test_fences.py",
    "test_joining.py", "test_braces.py", "test_edges.py", "test_runnable.py", "test_distributed.py",
    "lm/test_protocol.py", "report/test_page.py",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_tests_that_were_written_for_good_models_meet_bad_ones(seed):
    """Whatever they expect: nothing comes out of pullback but what a model did, or the budget."""
    files = [str(HERE / name) for name in spread(WRITTEN_FOR_GOOD_MODELS, 5)]
    words = ["pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.text.misbehaving"]
    words += ["-p", "no:threadexception", *files]  # what a thread of a test raises is the test's
    run = subprocess.run(
        [sys.executable, "-m", *words], cwd=HERE.parents[1], capture_output=True, text=True,
        env={**os.environ, "MISBEHAVING": f"{seed}"}, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:]
    assert int(re.findall(r"met: (\d+) bad answers", run.stdout)[0]) > 20


def test_what_a_model_did_is_no_fault_and_what_pullback_does_of_it_is():
    def raised(call):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            call()
        return caught

    assert is_fault(raised(lambda: max_length("three")))
    assert not is_fault(raised(lambda: judge(Scripted([""]), "?", Variable("x"), retries=0)))
    assert not is_fault(raised(lambda: {}["of the test itself"]))


def test_validated_by_hand_goes_on(tmp_path):
    module = pipeline(3, 0.2, risk=1.0)
    optimizer = module.configure_optimizers()
    assert isinstance(optimizer, Validated)
    for _ in range(4):
        for mail, wanted in DATA[:3]:
            with tolerate(1.0):
                exact_match(module(mail), wanted).backward()
        with tolerate(1.0):
            optimizer.step()
    assert len(optimizer.outcomes) == 4


FORM = {"ok": {"type": "boolean"}, "tags": {"type": "array"}, "n": {"type": ["number", "null"]},
        "why": {"type": "string"}, "any": True,
        "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}  # fmt: skip
READS = {
    "flag": lambda data: 1.0 if data["ok"] else 0.0,
    "no flag": lambda data: float(not data["ok"]),
    "flag or none": lambda data: 1.0 if data["maybe"] else 0.0,
    "list": lambda data: float(len(data["tags"])),
    "number": lambda data: data["n"] + 1,
    "itself": lambda data: data["n"],
    "text": lambda data: float("x" in data["why"] + "!"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_structure_that_failed_scores_nothing_however_it_is_read(read):
    schema = {"type": "object", "properties": FORM, "required": list(FORM)}
    bad = Misbehaving(Scripted(["fine"]), share=1.0, kinds=["empty"])
    measure = Measure(Spam(), lambda m, s: read(chat(bad, s, schema=schema).data), ["q"])
    assert (measure(), measure.failures) == (0.0, 1)


@pytest.mark.parametrize("put", [lambda v: v + "!", lambda v: "!" + v, lambda v: v + v])
def test_a_failure_that_is_added_to_a_text_stays_one_and_asks_nobody(put):
    with tolerate(9):
        failed = put(chat(Scripted([""]), "Hello"))
        out = chat(Scripted([ModelError("asked")]), failed)
    assert isinstance(failed.data, Failure)
    assert isinstance(out.data, Failure)


@pytest.mark.parametrize("kind", ["broken", "dropped", "silent", "busy"])
def test_a_call_that_is_lost_counts_in_a_budget_as_one_of_a_server_does(kind):
    account = Account(calls=3)
    bad = Misbehaving(Scripted(["fine"]), share=1.0, kinds=[kind], silence=0.0)
    lm = Retry(Budget(bad, account), attempts=4, wait=0)
    with pytest.raises(ModelError if kind == "busy" else BudgetError):
        lm("Hello")
    assert account.spent.calls == (0 if kind == "busy" else 3)  # what is refused at once is free
