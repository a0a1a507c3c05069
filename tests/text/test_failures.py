"""A bad answer is data: it scores 0, says why, and ends a run only where there are too many."""

import itertools
import json
import random
from fractions import Fraction

import numpy as np
import pytest
from tests.text.helpers import answering
from tests.text.server import Server, faults
from tests.text.test_train import DATA, Spam, label

from pullback.errors import ArgumentError, ModelError, ReplyError
from pullback.tape import Function, Variable, vmap
from pullback.text import (
    ChatModule,
    Failure,
    Failures,
    ModelCritic,
    Module,
    Parameter,
    RuleCritic,
    chat,
    concat,
    exact_match,
    format,  # noqa: A004
    judge,
    map_python,
    select,
    split,
    tolerate,
    use_critic,
)
from pullback.text._measure import score_sample
from pullback.text.lm import Completion, Finish, Journal, OpenAI, Run, Scripted, Tool, ToolCall
from pullback.text.optim import TGD
from pullback.text.train import DataLoader, Measure, Trainer

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "more": {"properties": {"why": {}}}},
    "required": ["label"],
}
BAD = {
    "empty": "",
    "withheld": Completion("", finish=Finish.CONTENT_FILTER),
    "cut off": Completion("spa", finish=Finish.LENGTH),
    "unreadable": ReplyError("unreadable"),
    "busy": ModelError("busy", transient=True, status=429),
    "broken": ModelError("broken", transient=True, status=500),
    "too long": ModelError("The prompt is longer.", status=413),
}


def every(number, bad):
    """A model that answers rightly, but for one answer of so many."""
    count = itertools.count(1)

    def answer(request):
        return bad if next(count) % number == 0 else label(request)

    return answering(answer)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_answer_costs_its_own_score_and_ends_nothing(bad, tmp_path):
    module = Spam(held=DATA, risk=1.0)
    module.classify.lm = every(7, bad)
    with Run(tmp_path / "run.sqlite"):
        result = Trainer(2).fit(module, DataLoader(DATA, 4), DataLoader(DATA, 4))
    assert result.stopped == "2 epochs are done"
    assert 2 <= len(result.failures) <= 8
    assert f"{len(result.failures)} answers of models failed" in str(result)
    with Journal(tmp_path / "run.sqlite") as journal:
        kept = [call for call in journal.calls() if call.failure]
    assert len(kept) == (0 if isinstance(bad, Exception) else len(result.failures))


CODES = [
    "context_length_exceeded", "content_filter", "invalid_prompt", "json_validate_failed",
    "tool_use_failed",
]  # fmt: skip


@pytest.mark.parametrize("fault", [
    *(faults.status(400, error_code=code) for code in CODES),
    faults.status(400, kind="exceed_context_size_error"), faults.status(413),
])  # fmt: skip
def test_what_a_server_refuses_because_of_an_answer_is_a_failure(fault):
    with Server(faults=[fault]) as server, tolerate():
        lm = OpenAI("m", base_url=server.url, api_key="none")
        assert "[failed: " in chat(lm, "a").data


@pytest.mark.parametrize("bad", [
    "not json", '{"label": 3}', Completion('{"la', finish=Finish.LENGTH),
    f'{{"label": "x", "more": {"[" * 400}{"]" * 400}}}',
    Completion("", finish=Finish.TOOL_CALLS, tool_calls=(ToolCall("c", "label", "{}"),)),
])  # fmt: skip
def test_a_structure_that_fails_has_its_fields_and_is_told_why(bad):
    mail = Variable("BUY", "mail", requires_grad=True)
    with tolerate(2) as failures, use_critic(RuleCritic([])):
        out = chat(Scripted([bad]), mail, schema=SCHEMA)
        score, _ = exact_match(select(out, "label"), "spam")
        assert isinstance(select(out, "more", "why").data, Failure)
    assert (score.data, len(failures.causes), failures.asked) == (0.0, 1, 1)
    score.backward()
    assert "[failed: " in mail.grad[0].data
    assert "Expected: spam" in mail.grad[0].data


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.CONTENT_FILTER])
def test_an_answer_beside_tools_that_is_not_whole_is_a_failure(finish):
    asks = Completion("Rom", finish=finish, tool_calls=(ToolCall("c", "label", '{"x": '),))
    with tolerate():
        found = chat(Scripted([asks]), "a", tools=[Tool("label", "", {})]).data
    assert (isinstance(found["text"], Failure), found["tool_calls"]) == (True, [])
    with pytest.raises(ReplyError):
        chat(Scripted([asks]), "a", tools=[Tool("label", "", {})])


def test_what_follows_a_failure_asks_nobody_and_tells_the_failure_alone():
    asked = []
    lm = Scripted(lambda request: asked.append(request) or "x")
    system, word = Parameter("S", "system"), Variable("w", "word", requires_grad=True)
    with tolerate() as failures, use_critic(RuleCritic([])):
        failed = chat(Scripted([""]), word)
        out = chat(lm, [{"role": "system", "content": system}, {"role": "user", "content": failed}])
        out = map_python(lambda text: 1 / 0, format("{a} {b}", a=out, b="c"), purpose="never run")
        out = concat(split(out, ",")[0], "!")
        score, explanation = judge(lm, "Is it good?", out)
    assert (asked, score.data) == ([], 0.0)
    assert "The model answered nothing." in explanation.data
    assert isinstance(out.data, Failure)
    score.backward()
    assert (len(word.grad), len(system.grad)) == (1, 0)
    assert failures.causes == ["The model answered nothing."]


def test_one_item_of_a_batch_fails_alone_and_so_does_its_judge():
    lm = Scripted(lambda request: "" if "2" in request.messages[-1].text else "ok")
    verdict = Scripted(lambda request: "good!" if "ok" in request.messages[-1].text else "{")
    prediction = Variable(["ok", "no"], "texts", requires_grad=True)
    with tolerate(9) as failures:
        out = vmap(lambda word: chat(lm, word))([Variable(f"{n}") for n in range(4)])
        assert exact_match(out, ["ok"] * 4).score.data == 0.75
        score, explanation = judge(verdict, "?", prediction, retries=0)
    assert (score.data, len(failures.causes)) == (0.0, 3)
    assert explanation.data.count("[failed: ") == 2
    score.backward()
    assert prediction.grad is None  # nothing is known of texts whose judge fails


def test_a_critic_that_fails_says_nothing():
    word = Variable("w", "word", requires_grad=True)
    lm = Scripted(lambda request: "fine" if len(request.messages) == 1 else "unreadable")
    with tolerate(9) as failures:
        chat(lm, word).backward(Variable("bad"))
    assert word.grad == []
    assert len(failures.causes) == 1


def test_an_answer_without_text_or_a_call_of_a_tool_is_none():
    tools = [Tool("weather", "the weather", {"type": "object"})]
    asks = Completion("", finish=Finish.TOOL_CALLS, tool_calls=(ToolCall("c", "weather", "{}"),))
    assert chat(Scripted([asks]), "x", tools=tools).data["tool_calls"][0]["id"] == "c"
    with pytest.raises(ReplyError, match="answered nothing"):
        chat(Scripted([" "]), "x", tools=tools)
    with tolerate() as failures:
        assert "answered nothing" in chat(Scripted([""]), "x", tools=tools).data["text"].cause
    assert len(failures.causes) == 1


def test_outside_of_a_tolerance_and_for_programmers_errors_everything_raises():
    with pytest.raises(ReplyError, match="nothing"):
        chat(Scripted([""]), "x")
    with tolerate(), pytest.raises(ModelError, match="key"):
        chat(Scripted([ModelError("key", status=401)]), "x")
    with tolerate(), pytest.raises(ModelError, match="no answer left"):
        Scripted(["x"])("x"), [chat(lm, "x") for lm in [Scripted(["x"])] * 2]
    for most in (0, -1, 0.0, 1.5, True, "2"):
        with pytest.raises(ArgumentError):
            Trainer(max_failures=most)


@pytest.mark.parametrize("most", [np.int64(3), np.float32(0.2), Fraction(1, 5)])
def test_a_count_or_a_share_is_one_of_any_type(most):
    failures = Failures(most)
    failures.count(50 if most < 1 else 2, ["bad"] * (10 if most < 1 else 2))
    with pytest.raises(ModelError, match="3" if most > 1 else "20%"):
        failures.count(1, ["bad"])


class Steps(Module):
    """A plan of a model, whose steps are asked about one by one."""

    def __init__(self, lm, run):
        self.plan, self.run = ChatModule(lm, "Plan.", "{x}", schema=PLAN), run
        self.do = ChatModule(lm, "Do.", "{step}")

    def each(self, steps):
        return [self.do(step=step) for step in steps][-1]

    def training_step(self, batch, number):
        return exact_match(self.run(self, self.plan(x=batch[0])), "done")

    def configure_optimizers(self):
        return TGD(self.parameters(), self.plan.lm)


PLAN = {"type": "object", "properties": {"steps": {"type": "array"}, "count": {"type": "integer"}}}
RUNS = {
    "batch": lambda module, plan: vmap(lambda step: module.do(step=step))(plan["steps"])[0],
    "number": lambda module, plan: module.do(step=f"{plan.data['count'] + 1}"),
    "loop": lambda module, plan: module.each(plan["steps"]),
    "plain loop": lambda module, plan: module.each(plan.data["steps"]),
    "first three": lambda module, plan: module.each(plan["steps"][:3]),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_what_breaks_on_an_answer_that_failed_is_that_failure(run):
    asked = []

    def answer(request):
        asked.append(request.messages[0].text)
        return "no JSON" if asked[-1] == "Plan." else "done"

    result = Trainer(1).fit(Steps(answering(answer), run), DataLoader([(Variable("a"),)] * 3, None))
    assert result.history == [{"score": 0.0}]
    assert len(result.failures) == 3
    assert "Do." not in asked  # nobody is asked about the letters of what says that it failed


def test_what_breaks_without_a_failure_is_the_program_s():
    module = Steps(answering(lambda request: '{"steps": [], "count": 1}'), RUNS["loop"])
    with pytest.raises(IndexError):
        Trainer(1).fit(module, DataLoader([(Variable("a"),)], None))


def test_a_share_ends_no_run_by_ill_luck():
    ended = 0
    for seed in range(300):  # models that fail in 5 % of their answers; a fifth may
        dice, failures = random.Random(seed), Failures()
        try:
            for _ in range(200):
                failures.count(1, ["bad"] if dice.random() < 0.05 else [])
        except ModelError:
            ended += 1
    assert ended == 0
    with pytest.raises(ModelError, match="10 of 10"):
        Failures().count(20, ["bad"] * 20)


def test_a_run_with_too_many_ends_with_its_state_kept_and_asks_again_when_resumed(tmp_path):
    path, folder = tmp_path / "run.sqlite", tmp_path / "state"
    broken, asked = True, []

    def answer(request):
        asked.append(request)
        return "" if broken and len(asked) > 5 else label(request)

    def train(resume=None):
        module = Spam(held=DATA, risk=1.0)
        module.classify.lm = answering(answer)
        with Run(path) as run:
            result = Trainer(1, folder=folder, max_failures=4).fit(
                module, DataLoader(DATA, 4), resume=resume
            )
        return result, run

    with pytest.raises(ModelError, match="Too many answers"):
        train()
    state = json.loads((folder / "checkpoint.json").read_text())
    assert (state["epoch"], state["module"]["classify.system"]) == (0, "Classify.")
    paid, broken = len(asked), False
    result, run = train(folder / "checkpoint.json")
    assert (result.failures, result.stopped) == ([], "1 epochs are done")
    assert run.recorded >= 4  # what was paid for and could be used is not asked again
    with Journal(path) as journal:
        calls = journal.calls()
    assert sum(call.failure is not None for call in calls) >= 4
    assert paid < len(asked)


def test_a_killed_run_goes_on_with_its_failures_as_they_were(tmp_path):
    class Stop(Exception):
        pass

    def train(path, stop):
        count = itertools.count()
        module = Spam(held=DATA, risk=1.0)
        good = every(6, "")

        async def answer(request):
            if next(count) == stop:
                raise Stop
            return await good.answer(request)

        module.classify.lm = Scripted(answer)
        with Run(path) as run:
            result = Trainer(2).fit(module, DataLoader(DATA, 4))
        return result.history, result.failures, module.state_dict(), run.paid

    whole = train(tmp_path / "whole.sqlite", None)
    assert whole[1]
    with pytest.raises(Stop):
        train(tmp_path / "run.sqlite", 11)
    again = train(tmp_path / "run.sqlite", None)
    assert again[-1] < whole[-1]


def test_a_module_that_asks_by_itself_fails_as_well():
    class Own(Module):
        def __init__(self):
            self.ask = ChatModule(Scripted(["x"]), "S", "{x}")

    bare = Scripted(lambda request: ReplyError("cut"))
    measure = Measure(Own(), lambda module, n: float(len(bare(f"{n}").text)), range(3))
    assert measure() == 0.0
    assert measure.failures == 3


def test_a_writer_that_answers_badly_leaves_the_text():
    class Words(Module):
        def __init__(self):
            self.text = Parameter("one", role="word")

        def training_step(self, batch, number):
            return exact_match(self.text + "", "two")

        def configure_optimizers(self):
            return TGD([self.text], Scripted(lambda request: "no tags"), retries=0)

    module = Words()
    result = Trainer(3).fit(module, DataLoader([0], 1))
    assert module.text.data == "one"
    assert (result.proposals, len(result.failures)) == (3, 3)


def test_a_critic_of_a_python_step_that_fails_ends_no_training():
    class Upper(Module):
        def __init__(self):
            self.how = Parameter("upper", role="how")
            self.critic = ModelCritic(Scripted(lambda request: "?"), retries=0)

        def training_step(self, batch, number):
            told = map_python(str.lower, batch[0], purpose=self.how, critic=self.critic)
            return exact_match(told, "A")

        def configure_optimizers(self):
            return TGD(self.parameters(), Scripted(["never asked"]))

    module = Upper()
    result = Trainer(1, max_failures=9).fit(module, DataLoader([(Variable("a"),)] * 3, None))
    assert len(result.failures) == 3
    assert module.how.grad == []


def test_a_rule_that_asks_a_model_itself_ends_no_training_where_that_fails():
    class Asks(Function):
        @staticmethod
        def forward(ctx, text):
            return Variable(text.data)

        @staticmethod
        async def backward(ctx, feedback):
            raise ReplyError("unreadable")

    class Step(Spam):
        def training_step(self, batch, number):
            return exact_match(Asks.apply(self.classify.system), "right")

    module = Step(Scripted(["never asked"]))
    result = Trainer(1, max_failures=9).fit(module, DataLoader(DATA[:2], None))
    assert result.failures == ["unreadable"] * 2


def test_a_measure_counts_what_a_model_failed_in():
    class Asks(Module):
        def __init__(self, lm):
            self.ask = ChatModule(lm, "Answer.", "{question}", role="answer")

    lm = Scripted(lambda request: "" if request.messages[-1].text == "q1" else "A")

    def metric(module, sample):
        return exact_match(module.ask(question=Variable(sample)), "A")

    measure = Measure(Asks(lm), metric, ["q0", "q1", "q2", "q3"])
    assert (measure(), measure.failures) == (0.75, 1)
    scored = score_sample(metric, measure.module, "q1")
    assert (scored.score, scored.failure) == (0.0, "The model answered nothing.")


@pytest.mark.parametrize("options", [{"max_failures": 0.9}, {"budget": 16}, {"max_failures": 3}])
def test_a_training_that_goes_on_counts_what_was_before(tmp_path, options):
    data = [(Variable(f"m{n}", "mail"), "yes") for n in range(4)]

    calls = []

    class Learns(Module):
        def __init__(self):
            self.asked = itertools.count(1)
            self.lm = Scripted(self.answer)
            self.label = ChatModule(self.lm, "S", "{mail}", role="label")

        def answer(self, request):
            number, said = next(self.asked), request.messages[-1].text
            calls.append(said)
            if "<PARTS" in said:
                return '<FEEDBACK id="0">x</FEEDBACK>'
            if "<CONSTRAINTS" in said:
                return f"<IMPROVED>S{number}</IMPROVED>"
            return "" if said == "m0" else "no"

        def training_step(self, batch, number):
            mails, labels = batch
            return exact_match(vmap(lambda mail: self.label(mail=mail))(mails), labels)

        def configure_optimizers(self):
            return TGD(self.parameters(), self.lm)

    def fitted(folder, epochs, resume=None):
        trainer = Trainer(epochs, folder=tmp_path / folder, **options)
        try:
            result = trainer.fit(Learns(), DataLoader(data, 4), resume=resume)
        except ModelError as error:
            return str(error)
        return len(result.failures), len(result.history), result.proposals, result.stopped

    whole, found, paid = fitted("whole", 4), (), len(calls)
    calls.clear()
    for epochs in range(1, 5):
        folder = tmp_path / "parts" / "checkpoint.json"
        found = fitted("parts", epochs, folder if epochs > 1 else None)
        if isinstance(found, str):
            break
    assert (found, len(calls)) == (whole, paid)
