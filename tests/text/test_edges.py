"""What long runs meet: half a character, huge pages, forks, samples of one prompt, tracebacks."""

import contextlib
import json
import os
import traceback
from pathlib import Path

import pytest
from tests.text import server as faults
from tests.text.server import Server
from tests.text.test_train import DATA, Spam

from pullback import text
from pullback.cli import _text_run
from pullback.errors import (
    ArgumentError,
    ArgumentTypeError,
    BudgetError,
    ModelError,
    RecordingError,
    UnsupportedError,
)
from pullback.tape import Variable, vmap
from pullback.text import Module, Parameter, chat
from pullback.text.lm import Account, Budget, Journal, OpenAI, Record, Request, Run, Scripted
from pullback.text.optim import TGD, Constraint
from pullback.text.prices import Price, read_prices
from pullback.text.report import render_run
from pullback.text.train import DataLoader, Trainer

KEY = "sk-edges-0123456789"


def test_half_a_character_is_sent_kept_and_shown(tmp_path):
    half = "half \ud800 a character"
    with Journal(tmp_path / "run.sqlite") as journal:
        Record(Scripted([half]), journal)(half)
        page = render_run(journal)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert "half \ufffd a character" in page
    module = Module()
    module.text = Parameter(half)
    module.save(tmp_path / "state.json")
    module.load(tmp_path / "state.json")
    assert module.text.data == half
    with Server() as server:
        answer = OpenAI("m", base_url=server.url, api_key=KEY)(half)
    assert answer.text == "half \ufffd a character"


def test_files_that_an_editor_gave_a_byte_order_mark_are_read(tmp_path):
    module = Module()
    module.text = Parameter("a")
    module.save(tmp_path / "state.json")
    (tmp_path / "prices.json").write_text('{"models": {"m": {"input": 1, "output": 2}}}')
    shipped = Path(text.__file__).with_name("prompts") / "judge.txt"
    (tmp_path / "judge.txt").write_text(shipped.read_text("utf-8"), "utf-8")
    for each in tmp_path.iterdir():
        each.write_bytes(b"\xef\xbb\xbf" + each.read_bytes())
    module.load(tmp_path / "state.json")
    assert read_prices(tmp_path / "prices.json")["m"] == Price(1.0, 2.0)
    with text.use_prompts(tmp_path):
        assert text.prompt("judge")[0][0] == "system"


def test_a_page_is_bounded_and_says_what_it_leaves_out(tmp_path):
    with Journal(tmp_path / "run.sqlite") as journal:
        lm = Record(Scripted(lambda request: "answer " * 20_000), journal)
        for number in range(30):
            lm(f"{number} " + "prompt " * 20_000)
        page = render_run(journal)
    assert len(page) < 5_000_000
    assert "characters left out" in page


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_budget_and_a_journal_hold_over_a_fork(tmp_path):
    def child(number, asks):
        told = []
        for ask in asks:
            try:
                ask(f"child {number}")
            except (BudgetError, RecordingError) as error:
                told.append(error.what)
        (tmp_path / f"{number}.json").write_text(json.dumps(told))

    with Server() as server:
        lm = OpenAI("m", base_url=server.url, api_key=KEY)
        account = Account(calls=2)
        with Run(tmp_path / "run.sqlite", account=account):
            lm("first")
            for number in range(3):
                process = os.fork()
                if not process:
                    try:
                        child(number, (lm, Budget(lm, account)))
                    finally:
                        os._exit(0)
                os.waitpid(process, 0)
            lm("second")
            with pytest.raises(BudgetError):
                lm("third")
        assert len(server.bodies) == 2
    for number in range(3):
        told = json.loads((tmp_path / f"{number}.json").read_text())
        assert len(told) == 2
        assert all("fork" in each for each in told)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_fork_has_connections_of_its_own():
    """It wrote into those of its parent, and one of them got the answer of the other, or none."""
    with Server() as server:
        lm = OpenAI("m", base_url=server.url, api_key=KEY)
        assert lm("before").text == "before"
        process = os.fork()
        if not process:
            with contextlib.suppress(BaseException):
                os._exit(lm("child").text != "child")
            os._exit(1)
        assert os.waitpid(process, 0)[1] == 0
        assert lm("after").text == "after"
        assert server.opened == 2


def test_no_key_stands_in_what_an_error_comes_from():
    with Server(faults=[faults.status(401, f"bad key {KEY}")]) as server:
        lm = OpenAI("m", base_url=server.url, api_key=KEY)
        with pytest.raises(ModelError) as caught:
            lm("x")
    error, seen = caught.value, []
    while error is not None:
        seen.append(repr(error) + "".join(traceback.format_exception(error)) + repr(vars(error)))
        error = error.__context__ or error.__cause__
    assert KEY not in "".join(seen)
    assert len(seen) == 1  # there is nothing that it comes from


def test_each_item_has_a_sample_of_its_own_where_that_is_asked_for():
    asked = []
    lm = Scripted(lambda request: asked.append(request) or f"{len(asked)}")
    same = [Variable("the same prompt") for _ in range(4)]

    def ask(prompt):
        return chat(lm, prompt)

    assert vmap(ask)(same).data == ["1"] * 4
    assert sorted(vmap(ask, randomness="different")(same).data) == ["2", "3", "4", "5"]
    assert vmap(ask, randomness="same")(same).data == ["6"] * 4
    with pytest.raises(UnsupportedError, match="random"):
        vmap(ask, randomness="error")(same)


def test_a_program_that_fails_is_told_its_own_lines_and_no_more(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text(
        "from pullback.text import map_python\n"
        "from pullback.tape import Variable\n"
        "def broken(text):\n    raise KeyError('a long word ' * 20)\n"
        "map_python(broken, Variable('x'), purpose='read')\n"
    )
    assert _text_run.run_program(Run(tmp_path / "run.sqlite"), program, []) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) < 25
    assert any("program.py" in line and "line 5" in line for line in lines)
    assert not any("pullback/tape" in line for line in lines)
    assert any("a long word " * 20 in line for line in lines)  # not wrapped
    assert sum("mend:" in line for line in lines) == 1  # said once


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, {"a": object()}])
def test_what_is_no_plain_json_is_no_note(tmp_path, value):
    with Run(tmp_path / "run.sqlite") as run:
        with pytest.raises(ArgumentError, match="plain JSON"):
            run.note("mine", value)
        run.note("mine", [1.0])


@pytest.mark.parametrize("name", ["epoch", "since", "proposals"])
def test_a_checkpoint_with_a_number_beyond_all_is_none(tmp_path, name):
    Trainer(1, folder=tmp_path).fit(Spam(), DataLoader(DATA, 4))
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: 1e400}))
    with pytest.raises(ArgumentError, match="checkpoint"):
        Trainer(2).fit(Spam(), DataLoader(DATA, 4), resume=path)


@pytest.mark.parametrize("answer", [True, False, 3])
def test_a_check_that_says_nothing_in_words_is_refused(answer):
    parameter = Parameter("a", "word")
    parameter.grad = [Variable("x")]
    short = Constraint("Short.", lambda text: answer)
    with pytest.raises(ArgumentTypeError, match=r"constraint 'Short\.'"):
        TGD([parameter], Scripted(["<IMPROVED>b</IMPROVED>"]), constraints=[short]).step()


def test_a_request_has_one_digest_however_its_temperature_is_written():
    whole, fraction = (
        Request.of("q", temperature=1, seed=1),
        Request.of("q", temperature=1.0, seed=1),
    )
    assert whole.digest("m") == fraction.digest("m")
    assert json.dumps(whole.to_dict()["options"]) == '{"temperature": 1.0, "seed": 1}'


@pytest.mark.parametrize("params", [[], [{"params": []}], [{"params": []}, {"params": []}]])
def test_an_optimizer_of_no_parameter_is_refused(params):
    with pytest.raises(ArgumentError, match="no parameter"):
        TGD(params, Scripted(["x"]))


def test_what_is_no_optimizer_is_named_by_who_gave_it(monkeypatch):
    monkeypatch.setattr(Spam, "configure_optimizers", lambda self: [])
    with pytest.raises(ArgumentTypeError, match="configure_optimizers"):
        Trainer(1).fit(Spam(), DataLoader(DATA, 4))


def test_a_huge_answer_is_quoted_in_part_where_it_is_asked_for_again():
    sizes = []

    def answer(request):
        sizes.append(sum(len(each.text) for each in request.messages))
        return "x" * 300_000 if len(sizes) == 1 else "<IMPROVED>b</IMPROVED>"

    parameter = Parameter("a", "word")
    parameter.grad = [Variable("x")]
    TGD([parameter], Scripted(answer)).step()
    assert (parameter.data, max(sizes) < 30_000) == ("b", True)


def test_what_a_number_of_a_structure_is_judged_by_is_told():
    word = Variable("w", "word", requires_grad=True)
    schema = {"type": "object", "properties": {"n": {"type": "number"}, "m": {"type": "number"}}}
    with text.use_critic(text.RuleCritic([])):
        (chat(Scripted(['{"n": 3, "m": 1}']), word, schema=schema)["n"] * 2.0).backward()
    assert "field n: " in word.grad[0].data
    assert "by 2" in word.grad[0].data
    assert "field m" not in word.grad[0].data


def test_a_state_shares_no_list_with_its_module():
    module = Module()
    module.register_buffer("seen", Variable({"x": [1]}))
    state = module.state_dict()
    state["seen"]["x"].append(2)
    assert module.state_dict() == {"seen": {"x": [1]}}
    module.load_state_dict(state)
    state["seen"]["x"].append(3)
    assert module.state_dict() == {"seen": {"x": [1, 2]}}
