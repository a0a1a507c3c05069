"""afnio's documented names and behaviour, running here."""

import importlib
import inspect
import json
import re
from collections import Counter

import pytest
from tests.text.helpers import Counting, criticise

import pullback.compat.afnio as hf
import pullback.compat.afnio.cognitive as cog
import pullback.compat.afnio.cognitive.functional as F
from pullback import tape
from pullback.compat.afnio._client import _backward
from pullback.compat.afnio.autodiff.decorators import evaluator
from pullback.compat.afnio.autodiff.function import Function
from pullback.compat.afnio.tellurio.run_context import get_active_run_uuid
from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError, UnsupportedError
from pullback.text import Rule, RuleCritic, tolerate, use_critic
from pullback.text.lm import Scripted

PATHS = {
    "autodiff": ["backward", "no_grad", "is_grad_enabled", "set_grad_enabled"],
    "autodiff.function": ["Function"],
    "autodiff.graph": ["Node", "GradientEdge"],
    "autodiff.decorators": ["evaluator", "no_grad"],
    "cognitive": ["Module", "Parameter", "ChatCompletion", "Add", "Sum", "Split", "add", "sum"],
    "cognitive.functional": ["add", "sum", "split", "chat_completion", "lm_judge_evaluator"],
    "cognitive.modules.module": ["Module"],
    "cognitive.modules.add": ["Add"],
    "cognitive.modules.sum": ["Sum"],
    "cognitive.modules.split": ["Split"],
    "cognitive.modules.chat_completion": ["ChatCompletion"],
    "cognitive.modules.deterministic_evaluator": ["DeterministicEvaluator"],
    "cognitive.modules.exact_match_evaluator": ["ExactMatchEvaluator"],
    "cognitive.modules.lm_judge_evaluator": ["LMJudgeEvaluator"],
    "cognitive.parameter": ["Parameter"],
    "models.openai": ["OpenAI", "AsyncOpenAI"],
    "models.model_registry": ["get_model", "register_model"],
    "optim": ["TGD"],
    "optim.tgd": ["TGD"],
    "optim.tgd.tgd": ["TGD"],
    "serialization": ["load", "save"],
    "tellurio.run": ["Run", "init"],
    "tellurio.run_context": ["get_active_run", "set_active_run", "get_active_run_uuid"],
    "utils.data.dataloader": ["DataLoader"],
    "utils.data.dataset": ["Dataset"],
    "utils.data.sampler": ["Sampler", "WeightedRandomSampler"],
    "optim.optimizer": ["Optimizer"],
    "trainer": ["Trainer"],
    "utils.data": ["DataLoader", "Dataset", "RandomSampler", "WeightedRandomSampler"],
    "tellurio": ["init", "login", "log", "suppress_variable_notifications"],
}
OF_A_FUNCTION = [
    "apply", "backward", "forward", "generate_vmap_rule", "jvp", "setup_context", "vjp", "vmap",
]  # fmt: skip
RULES = {  # and their signatures there
    "forward": "(*args, **kwargs)", "setup_context": "(ctx, inputs, output)",
    "backward": "(ctx, *grad_outputs)", "vjp": "(ctx, *grad_outputs)",
    "jvp": "(ctx, *grad_inputs)", "vmap": "(info, in_dims, *args)",
}  # fmt: skip
OF_A_CONTEXT = [
    "mark_dirty", "mark_non_differentiable", "needs_input_grad", "save_for_backward",
    "save_for_forward", "saved_tensors", "saved_variables", "set_materialize_grads",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_backward_client():
    before = list(_backward)
    yield
    _backward[:] = before


def variable(data, role="x"):
    return hf.Variable(data, role, requires_grad=True)


@pytest.mark.parametrize("path", PATHS)
def test_the_published_paths(path):
    module = importlib.import_module(f"pullback.compat.afnio.{path}")
    for name in PATHS[path]:
        assert hasattr(module, name)


def test_every_name_on_a_function_and_on_its_context():
    seen = []

    class Looks(Function):
        @staticmethod
        def forward(ctx, x):
            seen.extend(name for name in OF_A_CONTEXT if hasattr(type(ctx), name))
            return hf.Variable(x.data)

        @staticmethod
        def backward(ctx, feedback):
            return feedback

    assert all(hasattr(Looks, name) for name in OF_A_FUNCTION)
    Looks.apply(variable("a")).backward(hf.Variable("b"))
    assert seen == OF_A_CONTEXT


@pytest.mark.parametrize("rule", RULES)
def test_the_signatures_of_the_reference_page(rule):
    signature = inspect.signature(getattr(Function, rule))
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    assert str(inspect.Signature(plain)) == RULES[rule]


def test_the_example_of_the_reference_page():
    class Func(Function):
        @staticmethod
        def forward(ctx, x: hf.Variable):
            reverse = x.data[::-1]
            out = hf.Variable(data=reverse, role=x.role, requires_grad=True)
            ctx.save_for_backward(x, reverse, out)
            return out

        @staticmethod
        def backward(ctx, grad_out):
            x, reverse, out = ctx.saved_variables  # noqa: RUF059  # word for word
            grad = f"Here is the feedback for {x.role} (reversed): {grad_out.grad}"
            role = f"Feedback to {x.role}"
            x.grad = hf.Variable(data=grad, role=role)
            return x.grad

    a = hf.Variable(data="This is a string", role="Input string", requires_grad=True)
    c = Func.apply(a)
    assert isinstance(c, hf.Variable)
    assert (c.data, c.role, c.requires_grad) == ("gnirts a si sihT", "Input string", True)
    assert c.grad_fn.name() == "FuncBackward"
    assert isinstance(c.grad_fn, hf.Node)
    c.backward(hf.Variable("too short"))
    [note] = a.grad
    assert note.role == "Feedback to Input string"
    assert isinstance(note, hf.Variable)


def test_the_rules_are_called_as_the_reference_page_has_them():
    called = []

    class Twice(Function):
        @staticmethod
        def forward(x, *args, **kwargs):
            return hf.Variable(x.data * 2, role="twice")

        @staticmethod
        def setup_context(ctx, inputs, output):
            called.append((inputs[0].data, output.data))
            ctx.save_for_backward(*inputs, output)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, *grad_outputs):
            x, y = ctx.saved_variables
            return hf.Variable(f"{x.data} {y.data} {grad_outputs[0].data}")

        @staticmethod
        def jvp(ctx, *grad_inputs):
            return Twice.apply(*grad_inputs)

        @staticmethod
        def vmap(info, in_dims, *args):
            called.append((info.batch_size, in_dims))
            return tape.stack([Twice.apply(each) for each in args[0]]), 0

    x = variable("ab")
    Twice.apply(x).backward(hf.Variable("long"))
    assert (x.grad[0].data, called) == ("ab abab long", [("ab", "abab")])
    assert tape.vmap(Twice.apply)(["a", "b"]).data == ["aa", "bb"]
    assert called[1] == (2, (0,))
    assert tape.jvp(Twice.apply, (hf.Variable(1.5),), (hf.Variable(2.0),))[1].data == 4.0


def test_what_only_the_service_has_names_the_local_way():
    for name in (hf.tellurio.login, hf.tellurio.init, hf.tellurio.log, get_active_run_uuid):
        with pytest.raises(UnsupportedError, match=r"lm\.Run"):
            name("me", "project")


def test_the_explanation_of_an_evaluator_of_ones_own_runs_back_with_no_gradient():
    @evaluator
    class Short(Function):
        @staticmethod
        def forward(ctx, prediction, limit):
            ctx.save_for_backward(prediction)
            score = float(len(prediction.data) <= limit)
            return hf.Variable(score, role="score"), hf.Variable("too long", role="explanation")

        @staticmethod
        def backward(ctx, score_grad_output, explanation_grad_output):
            return hf.Variable("be shorter", role="feedback"), None

    x = variable("abcdef")
    score, explanation = Short.apply(x, 3)
    assert (score.data, explanation.data) == (0.0, "too long")
    explanation.backward()
    assert [note.data for note in x.grad] == ["be shorter"]
    for wrong in (Short.apply, str, 3):
        with pytest.raises(TypeError):
            evaluator(wrong)


def test_a_trainer_predicts_and_an_optimizer_clears():
    class Agent(cog.Module):
        def forward(self, batch):
            return len(batch)

    trainer = hf.trainer.Trainer(enable_checkpointing=False)
    assert trainer.predict(Agent(), [["a"], ["b", "c"]]) == [1, 2]
    with pytest.raises(ArgumentError, match="dataloader"):
        trainer.predict(Agent())
    prompt = cog.Parameter("a", role="p")
    prompt.append_grad(hf.Variable("longer"))
    hf.optim.Optimizer([prompt], {}).clear_grad()
    assert prompt.grad == []


def test_data_is_one_kind_and_numbers_become_floats():
    assert hf.Variable([1, 2.5]).data == [1.0, 2.5]
    for wrong in (["a", 1], None, {"a": 1}, [["a"], "b"], True):
        with pytest.raises(TypeError):
            hf.Variable(wrong)


def test_grad_is_a_list_and_can_be_added_to():
    x = variable("a")
    assert x.grad == []
    x.append_grad(hf.Variable("first"))
    x.append_grad(hf.Variable("second"))
    assert [note.data for note in x.grad] == ["first", "second"]
    n = variable(2.0)
    (n * n).backward()
    assert [note.data for note in n.grad] == [4.0]


def test_the_documented_operations():
    a, b = variable("abc", "input1"), variable("def", "input2")
    out = cog.Add()(a, b)
    assert (out.data, out.role) == ("abcdef", "input1 and input2")
    out = cog.Sum()([a, b, hf.Variable("ghi", "input3")])
    assert out.data == "<ITEM>abc</ITEM><ITEM>def</ITEM><ITEM>ghi</ITEM>"
    assert out.role == "input1 and input2 and input3"
    parts = cog.Split()(variable("Afnio is great!", "sentence"), " ", 1)
    assert [part.data for part in parts] == ["Afnio", "is great!"]
    assert [part.role for part in parts] == [
        "split part 0 of sentence", "split part 1 of sentence",
    ]  # fmt: skip
    both = F.add(variable(["a", "b"]), variable(["c", "d"]))
    assert both.data == ["ac", "bd"]
    for wrong in ((a, hf.Variable(["x"])), (hf.Variable(["x"]), hf.Variable(["x", "y"]))):
        with pytest.raises(ValueError, match="one length"):
            F.add(*wrong)
    with pytest.raises(TypeError):
        F.add(a, "x")
    with pytest.raises(TypeError):
        F.add(a, hf.Variable(1))


def test_the_documented_evaluators():
    prediction = variable("green", "color prediction")
    score, explanation = cog.ExactMatchEvaluator()(prediction, "red")
    assert score.data == 0
    explanation.backward()
    assert "green" in prediction.grad[0].data
    batch = variable(["the color is green", "blue"], "color prediction")
    score, explanation = cog.DeterministicEvaluator()(
        batch, ["green", "blue"], lambda p, t: int(p == t), "exact match", None, sum, "summation"
    )
    assert score.data == 1
    explanation.backward()
    assert len(batch.grad) == 1
    with pytest.raises(ValueError, match="one length"):
        F.exact_match_evaluator(batch, ["green"])
    with pytest.raises(ValueError, match="purpose"):
        F.deterministic_evaluator(batch, ["a", "b"], len, "", None, sum, "summation")


def test_a_judge_of_a_batch():
    messages = [
        {"role": "system", "content": [variable("Is it {metric}?", "task"), hf.Variable("JSON.")]},
        {"role": "user", "content": [hf.Variable("<P>{prediction}</P><T>{target}</T>")]},
    ]
    prediction = variable(["Hola Mundo", "Salve a tutti"], "translated text")

    def verdict(request):
        good = "Salve" in request.messages[1].text
        return json.dumps({"score": good, "explanation": "fine" if good else "not Italian"})

    metric = hf.Variable(["accurate", "accurate"], role="metric")
    score, explanation = F.lm_judge_evaluator(
        Scripted(verdict), messages, prediction, ["Ciao Mondo", "Salve a tutti"], {"metric": metric}
    )
    assert score.data == 1
    explanation.backward()
    assert [note.data for note in prediction.grad] == ["not Italian"]
    with pytest.raises(ReplyError):
        F.lm_judge_evaluator(Scripted(lambda r: "no JSON"), messages, variable("x"), "y",
                             {"metric": "m"})  # fmt: skip


def test_a_judge_that_fails_once_hides_nothing_of_what_it_says_of_the_others():
    messages = [{"role": "user", "content": [hf.Variable("Is it {prediction}?")]}]
    said = {"bad": "", "it": '{"score": 0, "explanation": "not Italian"}'}
    with tolerate():
        score, explanation = F.lm_judge_evaluator(Scripted(said), messages, variable(["bad", "x"]))
    assert score.data == 0
    assert explanation.data.splitlines()[1] == "not Italian"


def test_a_chat_completion_and_its_feedback():
    class Assistant(cog.Module):
        def __init__(self):
            super().__init__()
            self.chat = cog.ChatCompletion()

        def forward(self, fwd_model, messages, inputs, **completion_args):
            return self.chat(fwd_model, messages, inputs, **completion_args)

    system = variable("You are a helpful assistant.", "system instruction")
    user = hf.Variable("Translate 'Hello' to {language}.", role="user query")
    messages = [{"role": "system", "content": [system]}, {"role": "user", "content": [user]}]
    response = Assistant()(
        Scripted({"Italian": "Ciao"}), messages, inputs={"language": hf.Variable("Italian")},
        model="gpt-4o", temperature=0.7,
    )  # fmt: skip
    assert response.data == "Ciao"
    assert isinstance(response, hf.Variable)
    with pytest.raises(ArgumentError, match="set_backward_model_client"):
        response.backward(hf.Variable("Use only capital letters."))
    hf.set_backward_model_client(Scripted(criticise), completion_args={"temperature": 1.0})
    response.backward(hf.Variable("Use only capital letters."))
    assert "capital letters" in system.grad[0].data


def test_a_batch_of_inputs_is_a_batch_of_answers_and_may_be_rewritten():
    task = cog.Parameter("Answer.", role="task")
    messages = [
        {"role": "system", "content": [task]},
        {"role": "user", "content": [hf.Variable("{message}")]},
    ]
    seen = Counting(lambda request: f"```json\n{request.messages[1].text}\n```")
    answers = F.chat_completion(Scripted(seen), messages, {"message": hf.Variable(list("abca"))})
    assert len(seen.requests) == 3
    answers.data = [re.sub(r"^```json\n|\n```$", "", each) for each in answers.data]
    assert answers.data == list("abca")
    rule = Rule(lambda given, out: "it is fenced" if "```" in out else None)
    with use_critic(RuleCritic([rule])):
        answers = F.chat_completion(Scripted(seen), messages, {"message": hf.Variable(list("ab"))})
    answers.data = list("ab")
    loss = F.exact_match_evaluator(answers, hf.Variable(list("ax")))
    assert loss[0].data == 1
    loss[1].backward()
    assert [note.data for note in task.grad] == ["it is fenced"]


def test_bad_input_is_refused_before_anything_is_sent():
    seen = Counting("x")
    lm = Scripted(seen)
    message = [{"role": "user", "content": [hf.Variable("{a} {b}")]}]
    for inputs in ({"a": "x"}, {"a": hf.Variable(["x"]), "b": hf.Variable(["y", "z"])}):
        with pytest.raises(ArgumentError):
            F.chat_completion(lm, message, inputs)
    for messages in ([], 3, [{"role": "user"}], [{"role": "user", "content": [3]}]):
        with pytest.raises(TypeError):
            F.chat_completion(lm, messages)
    with pytest.raises(TypeError):
        F.chat_completion("gpt-4o", message)
    assert seen.requests == []


def test_tgd_rewrites():
    prompt = cog.Parameter("Say {word}.", role="prompt")
    prompt.append_grad(hf.Variable("be polite"))
    seen = Counting("<IMPROVED>Please say {word}.</IMPROVED>")
    constraints = [hf.Variable("Short.", role="constraint")]
    optimizer = hf.optim.TGD(
        [prompt], Scripted(seen), constraints=constraints, momentum=2, model="m"
    )
    assert optimizer.step(lambda: "loss") == "loss"
    assert prompt.data == "Please say {word}."
    assert "be polite" in seen.requests[0].messages[-1].text
    assert "model" not in seen.requests[0].options
    optimizer.clear_grad()
    assert prompt.grad == []


def test_the_registry_of_models():
    from pullback.compat.afnio.models.model_registry import get_model, register_model

    lm = Scripted(["x"])
    register_model(lm, "mine")
    assert get_model("mine") is lm
    assert get_model("another") is None


@pytest.mark.parametrize("state", [{1: "a"}, {"a": [({None: "b"},)]}, [{True: 1}]])
def test_keys_that_json_would_turn_into_texts_are_refused(tmp_path, state):
    with pytest.raises(ArgumentTypeError, match="keys are no texts"):
        hf.save(state, tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_state_is_saved_as_json(tmp_path):
    module = cog.Module()
    module.prompt = cog.Parameter("a", role="p")
    module.register_buffer("note", hf.Variable("b"))
    state = {"agent": module.state_dict(), "best": hf.Variable("x", "role", True)}
    hf.save(state, tmp_path / "state")
    again = hf.load(tmp_path / "state")
    assert again["agent"] == {"prompt": "a", "note": "b"}
    assert (again["best"].data, again["best"].requires_grad) == ("x", True)
    hf.save(hf.Variable("half \ud800"), tmp_path / "state")
    assert hf.load(tmp_path / "state").data == "half \ud800"
    for wrong in ({"x": object()}, {(1, 2): "x"}):
        with pytest.raises(ArgumentTypeError):
            hf.save(wrong, tmp_path / "state")
    with pytest.raises(ArgumentError):
        hf.save({}, tmp_path)
    mark = b'{"pullback.compat.afnio.Variable": %s}'
    for text in (b"\x80\x04K\x01.", b"[" * 100_000, mark % b"3", mark % b"[[1, 2], 3, 4, 5]"):
        (tmp_path / "bad").write_bytes(text)
        with pytest.raises(ArgumentError, match="save"):
            hf.load(tmp_path / "bad")
    with pytest.raises(ArgumentError, match="save"):
        hf.load(tmp_path / "none")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: hf.optim.TGD([variable("a")], Scripted(["x"]), constraints="abc"),
        lambda: hf.models.openai.OpenAI("a key of mine", max_retries="2"),
        lambda: hf.models.openai.OpenAI("a key of mine", max_retries=-1),
        lambda: F.split(hf.Variable(["a b", "c"])),
    ],
)
def test_what_afnio_would_take_apart_is_refused(wrong):
    with pytest.raises((ArgumentError, UnsupportedError)):
        wrong()


def test_forward_mode_and_no_grad():
    from pullback.tape import jvp

    class Quiet(Function):
        @staticmethod
        def forward(ctx, x):
            return hf.Variable(x.data.lower())

    with pytest.raises(UnsupportedError, match="no jvp"):
        jvp(Quiet.apply, (hf.Variable("A"),), (hf.Variable("b"),))
    with hf.no_grad():
        assert not Quiet.apply(variable("A")).requires_grad


def weights_of(data):
    labels = [labels[1].data for _, labels in (data[n] for n in range(len(data)))]
    counts = Counter(labels)
    return [len(labels) / counts[label] for label in labels]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_program_like_the_readmes_runs_against_a_server(tmp_path, monkeypatch, capsys):
    """The calls of the README's program, in its order, on the real SDK and a loopback server."""
    pytest.importorskip("openai")
    from tests.text.server import Server

    from pullback.compat.afnio.models.openai import AsyncOpenAI
    from pullback.compat.afnio.trainer import Trainer
    from pullback.compat.afnio.utils.data import DataLoader, WeightedRandomSampler

    words = {"positive": "thank you", "negative": "broken again", "neutral": "when is it"}
    rows = [
        (
            hf.Variable(f"{words[label]} {n}", "message"),
            ("low", hf.Variable(label, "sentiment"), ""),
        )
        for n, label in enumerate(["positive", "negative", "neutral"] * 4)
    ]
    monkeypatch.chdir(tmp_path)

    def answer(body):
        text = body["messages"][-1]["content"]
        if "<PARTS" in text:
            return '<FEEDBACK id="0">Name all three sentiments.</FEEDBACK>'
        if "<FEEDBACK " in text:
            return "<IMPROVED>Answer positive, neutral or negative.</IMPROVED>"
        assert body["response_format"]["type"] == "json_schema"
        right = next(label for label, word in words.items() if word in text)
        knows = "neutral" in body["messages"][0]["content"]
        return json.dumps({"sentiment": right if knows else "positive"})

    with Server(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        train, held = rows[:6], rows[6:]
        sampler = WeightedRandomSampler(weights_of(train), num_samples=len(train), seed=0)
        train_loader = DataLoader(train, sampler=sampler, batch_size=5)
        held_loader = DataLoader(held, batch_size=5, seed=42)
        hf.set_backward_model_client("openai/gpt-5", completion_args={"temperature": 1.0})
        client, writer = AsyncOpenAI(), AsyncOpenAI()

        class Analyzer(cog.Module):
            def __init__(self):
                super().__init__()
                self.task = cog.Parameter(data="Read the message.", role="system prompt")
                self.user = hf.Variable(data="**Message:**\n\n{message}\n", role="input template")
                self.chat = cog.ChatCompletion()

            def forward(self, fwd_model, inputs, **completion_args):
                messages = [
                    {"role": "system", "content": [self.task]},
                    {"role": "user", "content": [self.user]},
                ]
                return self.chat(fwd_model, messages, inputs=inputs,
                                 response_format={"type": "json_schema", "json_schema": {}},
                                 **completion_args)  # fmt: skip

            def training_step(self, batch, batch_idx):
                message, (_, gold, _) = batch
                said = self(client, inputs={"message": message}, model="small", temperature=0.0)
                said.data = [json.loads(each)["sentiment"] for each in said.data]
                loss = F.exact_match_evaluator(said, gold)
                return {"loss": loss, "accuracy": loss[0].data / len(gold.data)}

            def validation_step(self, batch, batch_idx):
                return self.training_step(batch, batch_idx)

            def test_step(self, batch, batch_idx):
                return self.validation_step(batch, batch_idx)

            def configure_optimizers(self):
                constraint = hf.Variable("No braces.", role="optimizer constraint")
                return hf.optim.TGD(self.parameters(), model_client=writer, momentum=3,
                                    constraints=[constraint], model="gpt-5")  # fmt: skip

        agent, trainer = Analyzer(), Trainer(max_epochs=2)
        clients = [client, hf.get_backward_model_client(), writer]
        before = trainer.test(agent=agent, test_dataloader=held_loader, llm_clients=clients)
        trainer.fit(agent=agent, train_dataloader=train_loader, val_dataloader=held_loader,
                    llm_clients=clients)  # fmt: skip
        after = trainer.test(agent=agent, test_dataloader=held_loader, llm_clients=clients)
    assert before["test_accuracy"] < 0.5
    assert after["test_accuracy"] == 1.0
    assert (tmp_path / "checkpoint" / "checkpoint.json").is_file()
    assert all(body["model"] in {"small", "gpt-5"} for body in server.bodies)
