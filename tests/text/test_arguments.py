"""What is no argument of a public call of this room ends in an error of ours, before any work."""

import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.arguments import Call, in_order, public_calls, wrong_answers
from tests.text.test_train import DATA, Spam

from pullback import text
from pullback.errors import ArgumentError
from pullback.tape import Variable
from pullback.text import (
    ChatModule,
    Failures,
    ModelCritic,
    Module,
    Parameter,
    Relay,
    Rule,
    RuleCritic,
    Template,
    TemplateParameter,
    distributed,
    exact_match,
    lm,
    optim,
    prices,
    report,
    train,
)
from pullback.text.lm import Account, Image, Message, Plan, Request, Scripted, Usage
from pullback.text.prices import Price

SCRIPT = Scripted(lambda request: "yes")
POOL = ThreadPoolExecutor(1)
_held = tempfile.TemporaryDirectory()  # until the process ends
FOLDER = Path(_held.name)
_numbers = itertools.count()  # no two files share a name
(FOLDER / "prices.json").write_text('{"models": {}}')
(FOLDER / "x.png").write_bytes(b"x")
(FOLDER / "prompts").mkdir()
ASKED = Request.of("Hi")
LOADER = train.DataLoader(DATA, 2)


def metric(module, sample):
    return exact_match(module(sample[0]), sample[1])


def answer():
    return Variable("yes", role="answer")


def file(name):
    return str(FOLDER / name)


def call(function, /, also=None, free="", choices="", **given):
    return lambda: Call(function, given, also or {}, free, choices)


def method(make, verb, /, also=None, free="", **given):
    return lambda: Call(getattr(make(), verb), given, also or {}, free)


class Runnable:
    def invoke(self, value):
        return value


def module():
    made = Module()
    made.text = Parameter("Say yes.")
    return made


def journal():
    return lm.Journal(FOLDER / f"{next(_numbers)}.sqlite")


def saved():
    module().save(file("state.json"))
    return module()


def tgd():
    return optim.TGD([Parameter("Say yes.", role="prompt")], SCRIPT)


def validated():
    return optim.Validated(tgd(), lambda: [1.0], risk=1.0)


def run(**given):
    with lm.Run(FOLDER / f"run{next(_numbers)}.sqlite", **given) as made:
        return made


def inside(verb, /, **given):
    """A method of a run that is under way."""

    def called(**given):
        with lm.Run(FOLDER / f"run{next(_numbers)}.sqlite") as made:
            return getattr(made, verb)(**given)

    return lambda: Call(called, given, free="value")


CALLS = {
    "ChatModule": call(ChatModule, lm=SCRIPT, system="Say.", user="{input}"),
    "Failure": call(text.Failure, cause="cut off"),
    "Failures": call(Failures, most=3),
    "ModelCritic": call(ModelCritic, lm=SCRIPT, retries=0, limit=10),
    "Module.load": method(saved, "load", path=file("state.json")),
    "Module.load_state_dict": method(module, "load_state_dict", state={"text": "x"}, strict=True),
    "Module.register_buffer": method(module, "register_buffer", name="x", value=answer()),
    "Module.requires_grad_": method(module, "requires_grad_", requires_grad=True),
    "Module.save": method(module, "save", path=file("state.json")),
    "Module.train": method(module, "train", mode=True),
    "Parameter": call(
        Parameter, data="x", role="x", requires_grad=True, also={"data": "whole negative nan empty"}
    ),
    "Rule": call(Rule, check=lambda a, b: None, purpose="x"),
    "Rule.applies": method(lambda: Rule(len), "applies", purpose="x"),
    "RuleCritic": call(RuleCritic, rules=[Rule(len)], also={"rules": "empty"}),
    "Template": call(Template, data="x", role="x", requires_grad=True),
    "TemplateParameter": call(TemplateParameter, data="x", role="x", requires_grad=True),
    "blame": call(text.blame, parameters=[answer()], also={"parameters": "empty"}),
    "chat": call(
        text.chat,
        lm=SCRIPT,
        messages="Hi",
        inputs=None,
        role="x",
        schema=None,
        tools=(),
        critic=Relay(),
        also={"tools": "empty"},
    ),
    "concat": call(in_order(text.concat), a="x", b=answer(), also={"b": "text"}),
    "deterministic": call(
        text.deterministic,
        prediction=answer(),
        target="yes",
        eval_fn=lambda a, b: 1.0,
        purpose="x",
        success=lambda score: True,
        reduction=lambda scores: 1.0,
        free="target",
        also={"success": "class"},
    ),
    "exact_match": call(
        exact_match, prediction=answer(), target="x", reduction=lambda s: 1.0, free="target"
    ),
    "format": call(lambda template, role: text.format(template, role=role), template="x", role="x"),
    "invoke": call(
        text.invoke, runnable=Runnable(), value="x", purpose="x", role="x", critic=Relay()
    ),
    "join": call(text.join, separator=", ", texts=["x"]),
    "judge": call(
        text.judge,
        lm=Scripted(lambda r: '{"score": 1, "explanation": "x"}'),
        criterion="x",
        prediction=answer(),
        target="x",
        success=lambda score: True,
        retries=0,
        also={"success": "class"},
    ),
    "map_python": call(
        lambda function, text_, purpose, role, critic: text.map_python(
            function, text_, purpose=purpose, role=role, critic=critic
        ),
        function=str,
        text_="x",
        purpose="x",
        role="x",
        critic=Relay(),
        free="text_",
        also={"critic": "none"},
    ),
    "prompt": call(text.prompt, name="judge"),
    "select": call(in_order(text.select), value=Variable({"a": ["x"]}), key="a"),
    "split": call(
        text.split,
        text=answer(),
        separator=",",
        maxsplit=1,
        also={"text": "text", "maxsplit": "negative"},
    ),
    "sum": call(text.sum, values=["x"]),
    "tolerate": call(text.tolerate, max_failures=3),
    "use_critic": call(text.use_critic, critic=Relay()),
    "use_prompts": call(text.use_prompts, folder=file("prompts")),
    # The models.
    "Account": call(Account, calls=3, tokens=3, cost=0.1, seconds=3.0, proposals=3),
    "Budget": call(
        lm.Budget, inner=SCRIPT, account=Account(calls=1), max_output_tokens=3, also={"account": ""}
    ),
    "Cached": call(lm.Cached, inner=SCRIPT, path=file("cache.sqlite")),
    "Chunk": call(lm.Chunk, text="x", completion=lm.Completion("x")),
    "Completion": call(
        lm.Completion,
        text="x",
        usage=Usage(),
        finish=lm.Finish.STOP,
        tool_calls=(),
        model="x",
        metadata={},
        also={"tool_calls": "empty"},
    ),
    "Completion.from_dict": call(lm.Completion.from_dict, value=lm.Completion("x").to_dict()),
    "Image": call(Image, url="https://x", detail="low", choices="detail"),
    "Image.from_bytes": call(
        Image.from_bytes, data=b"x", media_type="image/png", detail="low", choices="detail"
    ),
    "Image.from_file": call(Image.from_file, path=file("x.png"), detail="low", choices="detail"),
    "Journal": lambda: Call(
        lm.Journal,
        {"path": file(f"{next(_numbers)}.cache"), "make": True, "shared": True},
    ),
    "Journal.note": method(journal, "note", name="x", value=3, free="value"),
    "Limit": call(lm.Limit, inner=SCRIPT, concurrency=2, rate=2, per=1.0),
    "Message": call(
        Message,
        role="tool",
        content="x",
        tool_calls=(),
        tool_call_id="x",
        also={"content": "empty", "tool_calls": "empty"},
    ),
    "Message.from_dict": call(Message.from_dict, value={"role": "user", "content": "x"}),
    "Misbehaving": call(
        lm.Misbehaving,
        inner=SCRIPT,
        share=0.5,
        seed=3,
        kinds=["empty"],
        silence=1.0,
        also={"seed": "negative"},
    ),
    "OpenAI": call(
        lm.OpenAI,
        model="x",
        base_url="http://localhost:1/v1",
        api_key="sk-wrong",
        timeout=1.0,
        price=Price(0, 0),
        headers={"a": "secret"},
    ),
    "Plan": call(Plan, start=1, each=1, proposals=1),
    "Plan.affords": method(
        lambda: Plan(1, 1, 1), "affords", account=Account(calls=9), made=1, also={"account": "none"}
    ),
    "Plan.describe": method(
        lambda: Plan(1, 1, 1),
        "describe",
        account=Account(calls=9),
        made=1,
        also={"account": "none"},
    ),
    "Record": lambda: Call(lm.Record, {"inner": SCRIPT, "journal": journal()}, {"journal": "text"}),
    "Replay": lambda: Call(lm.Replay, {"journal": journal(), "model": "x"}),
    "Request": call(
        Request,
        messages=(Message("user", "x"),),
        options={},
        tools=(),
        also={"messages": "empty", "tools": "empty"},
    ),
    "Request.digest": method(lambda: ASKED, "digest", model="x"),
    "Request.of": call(
        Request.of, messages="x", schema=None, tools=(), also={"tools": "empty none"}
    ),
    "Retry": call(lm.Retry, inner=SCRIPT, attempts=2, wait=0.1, longest_wait=9.0),
    "Run": lambda: Call(
        run,
        {"account": None, "max_output_tokens": 3, "replay": False, "patience": 1.0, "watch": print},
        {"max_output_tokens": "none", "watch": "none"},
    ),
    "Run.expect": inside("expect", plan=Plan(1, 1, 1)),
    "Run.keep_graph": inside("keep_graph", roots=Parameter("x"), name="x"),
    "Run.note": inside("note", name="x", value=3),
    "Scripted": call(Scripted, answers=["x"], model="x", delay=0.1, also={"answers": "class list"}),
    "Spending": call(lm.Spending, calls=1, tokens=1, cost=0.1, proposals=1),
    "Text": call(lm.Text, text="x"),
    "Tool": call(lm.Tool, name="x", description="x", parameters={}),
    "ToolCall": call(lm.ToolCall, id="x", name="x", arguments="{}"),
    "ToolCall.from_dict": call(lm.ToolCall.from_dict, value=lm.ToolCall("x", "x", "").to_dict()),
    "Traced": call(lm.Traced, inner=SCRIPT, content=True),
    "Usage": call(Usage, input_tokens=1, output_tokens=1, cached_tokens=1, cost=0.1),
    "Wrapper": call(lm.Wrapper, inner=SCRIPT),
    "keep_secret": call(lm.keep_secret, secret="sk-arguments-1"),
    "scrub": call(lm.scrub, text="x"),
    # Optimisers.
    "Constraint": call(optim.Constraint, text="x", check=lambda text: None),
    "GepaProgram": call(
        optim.GepaProgram,
        module=Spam(),
        metric=metric,
        samples=DATA,
        writer=tgd(),
        at_once=2,
        also={"samples": "list"},
    ),
    "GepaProgram.load": method(
        lambda: optim.GepaProgram(module(), metric, DATA), "load", candidate={"text": "x"}
    ),
    "Optimizer": call(optim.Optimizer, params=[Parameter("x")], defaults={}),
    "Optimizer.add_param_group": method(tgd, "add_param_group", group={"params": [Parameter("x")]}),
    "Optimizer.load_state_dict": method(
        lambda: optim.Optimizer([Parameter("x")], {}),
        "load_state_dict",
        state={"versions": [[{"value": "x", "feedback": [], "score": None}]]},
    ),
    "Optimizer.record": method(tgd, "record", score=0.5, also={"score": "negative"}),
    "Optimizer.set_values": method(tgd, "set_values", values=["x"]),
    "Pareto": call(
        optim.Pareto,
        module=Spam(),
        writer=tgd(),
        metric=metric,
        train=DATA,
        held=DATA,
        evaluations=99,
        minibatch=2,
        seed=3,
        risk=1.0,
        max_failures=3,
        also={"train": "list", "held": "list", "seed": "negative"},
    ),
    "TGD": call(
        optim.TGD,
        params=[Parameter("x")],
        lm=SCRIPT,
        constraints=["x"],
        momentum=1,
        temperature=0.1,
        seed=3,
        retries=1,
        limit=9,
        messages=None,
        also={"constraints": "empty", "seed": "negative"},
    ),
    "TGD.add_param_group": method(tgd, "add_param_group", group={"params": [Parameter("x")]}),
    "TGD.load_state_dict": method(tgd, "load_state_dict", state=tgd().state_dict()),
    "Validated": lambda: Call(
        optim.Validated,
        {
            "optimizer": tgd(),
            "measure": lambda: [1.0],
            "min_gain": 0.1,
            "final": None,
            "confirm": 1.0,
            "risk": 1.0,
            "looks": 3,
        },
        {"measure": "class"},
    ),
    "Optimizer.expect": method(tgd, "expect", proposals=3, also={"proposals": "none"}),
    "Validated.expect": method(validated, "expect", proposals=3, also={"proposals": "none"}),
    "Validated.load_state_dict": method(
        validated, "load_state_dict", state=validated().state_dict()
    ),
    "keeps_fields": call(optim.keeps_fields, template="x"),
    "max_length": call(optim.max_length, characters=3),
    "never": call(optim.never, pattern="x", text="x"),
    # Training.
    "DataLoader": call(
        train.DataLoader,
        dataset=DATA,
        batch_size=2,
        shuffle=False,
        sampler=[0, 1],
        drop_last=False,
        seed=3,
        collate_fn=list,
        also={
            "seed": "negative",
            "dataset": "list text empty",
            "batch_size": "none",
            "sampler": "list empty",
        },
    ),
    "Measure": call(
        train.Measure,
        module=module(),
        metric=metric,
        samples=DATA,
        repeats=2,
        at_once=2,
        evaluate=lambda *given: [],
        also={"samples": "list"},
    ),
    "Measure.scores": method(
        lambda: train.Measure(module(), lambda m, s: 1.0, DATA),
        "scores",
        numbers=[0],
        also={"numbers": "empty"},
    ),
    "RandomSampler": call(
        train.RandomSampler,
        data_source=DATA,
        replacement=True,
        num_samples=2,
        seed=3,
        also={"data_source": "list text", "seed": "negative"},
    ),
    "SequentialSampler": call(
        train.SequentialSampler, data_source=DATA, also={"data_source": "list text empty"}
    ),
    "Trainer": call(
        train.Trainer,
        max_epochs=1,
        patience=1,
        folder=str(FOLDER),
        budget=3,
        max_failures=3,
        progress=False,
    ),
    "Trainer.fit": method(
        train.Trainer,
        "fit",
        module=Spam(),
        train=LOADER,
        validation=None,
        resume=None,
        also={"validation": "list empty"},
    ),
    "Trainer.plan": method(train.Trainer, "plan", module=Spam(), train=LOADER, optimizer=tgd()),
    "Trainer.test": method(
        train.Trainer, "test", module=Spam(), data=LOADER, also={"data": "list empty"}
    ),
    "Trainer.validate": method(
        train.Trainer, "validate", module=Spam(), data=LOADER, also={"data": "list empty"}
    ),
    "WeightedRandomSampler": call(
        train.WeightedRandomSampler,
        weights=[1.0],
        num_samples=3,
        replacement=True,
        seed=3,
        also={"seed": "negative"},
    ),
    "count_calls": call(train.count_calls, module=module()),
    "plan_training": call(
        train.plan_training, forward=1, train=1, batches=1, held=1, texts=1, epochs=1, final=1
    ),
    "Workers": call(
        distributed.Workers,
        executor=POOL,
        chunk=2,
        host="localhost",
        pickler=None,
        also={"pickler": "class"},
    ),
    "Workers.evaluate": method(
        lambda: distributed.Workers(POOL), "evaluate", module=Spam(), metric=metric, samples=DATA
    ),
    "Workers.backward": method(
        lambda: distributed.Workers(POOL), "backward", module=Spam(), metric=metric, samples=DATA
    ),
    "Price": call(Price, input=1.0, output=1.0, cached=1.0),
    "Price.cost": method(
        lambda: Price(1.0, 1.0), "cost", input_tokens=1, output_tokens=1, cached_tokens=1
    ),
    "price_of": call(prices.price_of, model="x"),
    "read_prices": call(prices.read_prices, path=FOLDER / "prices.json"),
    "render_run": lambda: Call(report.render_run, {"journal": journal()}),
}

# What the room calls itself, or a subclass writes; and what it alone makes.
INSIDE = {
    *(
        f"{kind}.{verb}"
        for kind, verbs in {
            "Account": "add covers holding",
            "ChatModule": "forward",
            "Critic": "review",
            "Evaluation": "backward",
            "Failures": "add count",
            "GepaProgram": "evaluate make_reflective_dataset scores",
            "Journal": "fail find forget keep release settle take",
            "ModelCritic": "review",
            "ModelSummary": "add",
            "Module": "forward",
            "Relay": "review",
            "RuleCritic": "review",
            "Run": "keep keep_search steps",
        }.items()
        for verb in verbs.split()
    ),
    *(f"{kind}.{verb}" for kind in lm.__all__ for verb in ("answer", "step", "stream_answer")),
    *(f"LM.{verb}" for verb in ("acomplete", "ask", "ask_stream", "astream", "complete", "stream")),
    "Blame",
    "Call",
    "Comparison",
    "Critic",
    "Dataset",
    "Evaluation",
    "Finish",
    "ModelSummary",
    "LlamaCpp",
    "Outcome",
    "Result",
    "Review",
    "RunSummary",
    "Scored",
    "StepError",
    "summarise",
}


def test_every_public_call_is_here():
    rooms = (text, lm, optim, train, distributed, prices, report)
    assert public_calls(*rooms) - INSIDE == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_by_its_name(name):
    right = CALLS[name]()
    right.function(**right.given)  # it is right otherwise
    assert list(wrong_answers(CALLS[name])) == []


def group(**options):
    return lambda: optim.TGD([{"params": [Parameter("x")], **options}], SCRIPT)


def state(**version):
    whole = {"value": "a", "feedback": [], "score": 1.0, **version}
    return lambda: tgd().load_state_dict({"versions": [[whole]], "steps": 0})


ODD = object()  # no JSON
TOOL = lm.Tool("t", "what for", {"x": ODD})
# Of the right type, and wrong all the same: refused where it is given, not when it is used.
BEYOND = {
    "constraints that are one text": group(constraints="abc"),
    "constraints that are a number": group(constraints=3),
    "a field that the writer's prompt has no value for": lambda: optim.TGD(
        [Parameter("x")], SCRIPT, messages=(("user", "{nothing}"),)
    ),
    "an option of a writer": lambda: optim.TGD([Parameter("x")], SCRIPT, seed=1, top_p=ODD),
    "an option of a critic": lambda: ModelCritic(SCRIPT, top_p=ODD),
    "a pattern": lambda: optim.never("("),
    "a pattern of a rule": lambda: Rule(lambda given, out: None, "("),
    "a state whose score is a text": state(score="best"),
    "a state whose score is none of a number": state(score=float("nan")),
    "a state whose feedback is a number": state(feedback=[3]),
    "a tool that is no JSON": lambda: SCRIPT("a", tools=[TOOL]),
    "a tool that a cache cannot tell apart": lambda: lm.Cached(SCRIPT)("a", tools=[TOOL]),
    "a schema that is no JSON": lambda: SCRIPT("a", schema={"type": "object", "default": ODD}),
    "calls of tools": lambda: SCRIPT([{"role": "assistant", "content": "x", "tool_calls": 3}]),
    "a file that is not there": lambda: Image.from_file(file("none.png")),
    "a state that is not there": lambda: module().load(file("none.json")),
    "a folder as a state": lambda: module().save(FOLDER),
    "a file as a folder": lambda: train.Trainer(folder=file("x.png")).fit(Spam(), LOADER),
    "a rule that is no text": lambda: Scripted({1: "a"}),
    "an address": lambda: lm.OpenAI("m", base_url="http://[::1/v1", api_key="none"),
    "an address without a scheme": lambda: lm.OpenAI("m", base_url="localhost:1", api_key="none"),
    "an order that is used up": lambda: train.DataLoader(DATA, 2, sampler=iter([0])),
    "a measure of nothing": lambda: optim.Validated(tgd(), list, risk=1.0).step(),
    "no measure": lambda: optim.Validated(tgd(), lambda: None, risk=1.0).step(),
    "a metric that is no number": lambda: train.Trainer().fit(Odd(), LOADER),
}


class Odd(Spam):
    def training_step(self, batch, number):
        return {**super().training_step(batch, number), "count": "many"}


@pytest.mark.parametrize("name", BEYOND)
def test_what_can_not_be_used_is_refused_where_it_is_given(name):
    with pytest.raises(ArgumentError):
        BEYOND[name]()


def test_a_weight_of_nothing_is_never_drawn_beside_the_smallest():
    assert set(train.WeightedRandomSampler([5e-324, 0.0], 50, seed=0)) == {0}
    assert set(train.WeightedRandomSampler([1e308, 1e308], 50, seed=0)) == {0, 1}


@pytest.mark.parametrize("number", [2, -1])
def test_a_sample_that_there_is_not_is_refused(number):
    measure = train.Measure(Module(), lambda module, sample: 1.0, [0, 1])
    with pytest.raises(ArgumentError, match="no such sample"):
        measure.scores([0, number])


@pytest.mark.parametrize("messages", [(("user", "no field"),), (("foo", "{data}"),)])
def test_messages_that_tell_the_writer_nothing_are_refused(messages):
    with pytest.raises(ArgumentError, match="messages to the writer"):
        optim.TGD([Parameter("a", role="prompt")], Scripted(["b"]), messages=messages)
