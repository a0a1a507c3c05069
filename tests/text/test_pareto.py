"""gepa both ways: it optimises a Module of ours, never below its start, no sample paid twice."""

import asyncio
import re
from collections import Counter

import pytest
from tests.text.helpers import Counting
from tests.text.test_train import DATA, Spam

from pullback.errors import ArgumentError, BudgetError, ModelError
from pullback.text import ChatModule, ModelCritic, TemplateParameter, exact_match
from pullback.text.lm import Account, Run, Scripted
from pullback.text.optim import TGD, GepaProgram, Pareto, never

gepa = pytest.importorskip("gepa")


def metric(module, sample):
    mail, label = sample
    return exact_match(module(mail), label)


def search(answer, evaluations=60, **more):
    module, asked = Spam(), Counter()

    def counted(module, sample):
        asked[(module.classify.system.data, sample[0].data)] += 1
        return metric(module, sample)

    writer = TGD(module.parameters(), Scripted(answer), constraints=[never("evil")])
    pareto = Pareto(module, writer, counted, DATA[:4], DATA[4:], evaluations=evaluations, risk=1.0,
                    **more)  # fmt: skip
    return module, pareto, pareto.run(), asked


def test_it_finds_the_rule_and_pays_for_no_sample_twice():
    seen = Counting("<IMPROVED>odd mails are spam</IMPROVED>")
    module, pareto, result, asked = search(seen)
    assert module.classify.system.data == "odd mails are spam"
    assert max(result.val_aggregate_scores) == 1.0
    assert max(asked.values()) == 1
    assert pareto.program.evaluations == sum(asked.values()) <= 60
    assert "Expected: spam" in seen.requests[0].messages[1].text


@pytest.mark.parametrize("answer", ["unreadable", "<IMPROVED>evil odd</IMPROVED>"])
def test_a_writer_that_fails_changes_nothing(answer):
    module, pareto, *_ = search(lambda request: answer, max_failures=1.0)
    assert re.search(r"\d+ of \d+ answers failed", pareto.stopped)
    with pytest.raises(ModelError, match="Too many"):
        search(lambda request: answer)
    assert module.classify.system.data == "Classify."


def test_worse_texts_are_not_taken():
    module, _, result, _ = search(lambda request: "<IMPROVED>worse</IMPROVED>")
    assert module.classify.system.data == "Classify."
    assert result.val_aggregate_scores[0] == 0.5


def test_our_module_is_a_program_of_gepas_with_its_own_writer():
    module = Spam()
    program = GepaProgram(module, metric, DATA)
    result = gepa.optimize(
        seed_candidate=program.candidate, trainset=list(range(4)), valset=list(range(4, 8)),
        adapter=program, reflection_lm=lambda prompt: "```\nodd\n```", max_metric_calls=40,
        reflection_minibatch_size=3, logger=type("Silent", (), {"log": print})(),
    )  # fmt: skip
    assert result.best_candidate == {"classify.system": "odd"}
    assert module.classify.system.data == "Classify."
    program.load(result.best_candidate)
    assert module.classify.system.data == "odd"


def test_a_candidate_that_breaks_its_template_scores_nothing_and_a_bad_critic_says_nothing():
    lm = Scripted(lambda request: request.messages[-1].text)
    module = ChatModule(lm, "Say.", TemplateParameter("{word}", "template"), critic=ModelCritic(lm))
    equal = lambda module, sample: exact_match(module(word=sample), "good")  # noqa: E731
    program = GepaProgram(module, equal, ["good", "bad"])
    for text, scores in (("{word}", [1, 0]), ("It.", [0, 0]), ("{word} {", [0, 0])):
        candidate = {**program.candidate, "user": text}
        batch = program.evaluate([0, 1], candidate, capture_traces=True)
        assert batch.scores == scores
        assert program.make_reflective_dataset(candidate, batch, ["user"]) == {"user": []}
        assert module.user.data == "{word}"
    with pytest.raises(ArgumentError, match="no field"):
        module.load_state_dict({"system": "x", "user": "{word} {"})
    assert module.system.data == "Say."


def test_a_writer_that_cannot_be_asked_ends_the_search():
    with pytest.raises(ModelError, match="down"):
        search(lambda request: ModelError("down"))


def test_bad_arguments_are_refused():
    module = Spam()
    writer = TGD(module.parameters(), Scripted(["x"]))
    with pytest.raises(ArgumentError, match="one proposal"):
        Pareto(module, writer, metric, DATA[:4], DATA[4:], evaluations=5)
    with pytest.raises(ArgumentError, match="no samples"):
        Pareto(module, writer, metric, [], evaluations=5)
    with pytest.raises(ArgumentError, match="other texts"):
        GepaProgram(module, metric, DATA).load({"x": "y"})
    with pytest.raises(ArgumentError, match="no text"):
        GepaProgram(module.requires_grad_(False), metric, DATA)


def test_it_says_what_it_needs_before_and_what_it_was_worth_after(tmp_path):
    for room, ends in (({"proposals": 2}, False), ({"calls": 20}, False), ({"calls": 400}, True)):
        texts = iter(["first", "second", *["odd"] * 20])
        with Run(tmp_path / f"{room}.sqlite", account=Account(**room)) as run:
            module, pareto, result, _ = search(
                lambda request, texts=texts: f"<IMPROVED>{next(texts)}</IMPROVED>"
            )
        assert run.plans == [pareto.plan()]
        assert run.plans[0].proposals == 9  # of sixty evaluations, four for the start, six for each
        assert (result is not None) == ends
        assert ("used up" in pareto.stopped) == (not ends)
        assert "too few" in pareto.stopped
        assert module.classify.system.data == ("odd" if ends else "Classify.")
    with (
        Run(tmp_path / "none.sqlite", account=Account(proposals=0)) as run,
        pytest.raises(BudgetError, match="no proposal"),
    ):
        search(lambda request: "<IMPROVED>odd</IMPROVED>")
    assert run.paid == 0


def test_samples_are_evaluated_at_once_and_only_what_is_reflected_on_is_criticised():
    critics, asked, module = [], [], Spam()
    all_asked, inner = asyncio.Event(), module.classify.lm._answers

    async def answer(request):
        critics.extend(["one"] if "<PARTS" in request.messages[-1].text else [])
        asked.append(request)
        if len(asked) == 8:
            all_asked.set()
        await asyncio.wait_for(all_asked.wait(), 20)  # one after the other, it never comes
        return inner(request)

    module.classify.lm = Scripted(answer)
    texts = iter([f"text {n}" for n in range(99)])
    writer = TGD(module.parameters(), Scripted(lambda r: f"<IMPROVED>{next(texts)}</IMPROVED>"))
    program = GepaProgram(module, metric, DATA, writer)
    batch = program.evaluate(list(range(8)), program.candidate, capture_traces=True)
    assert len(asked) == 8
    assert critics == []
    program.make_reflective_dataset(program.candidate, batch, ["classify.system"])
    program.make_reflective_dataset(program.candidate, batch, ["classify.system"])
    assert len(critics) == 4  # of the eight, those that are wrong
    critics.clear()
    program = GepaProgram(module, metric, DATA, writer)
    twice = program.evaluate([1, 1, 0, 1], program.candidate, capture_traces=True)
    found = program.make_reflective_dataset(program.candidate, twice, ["classify.system"])
    assert (len(critics), len(found["classify.system"])) == (1, 3)  # a batch of gepa may be so
    search = Pareto(module, writer, metric, DATA[:4], DATA[4:], evaluations=34, risk=1.0)
    critics.clear()
    search.run()
    assert search.program.proposals >= 4
    assert len(critics) <= 4 * search.program.proposals // 2  # two of four samples are wrong
