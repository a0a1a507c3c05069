"""What long runs meet: half a character, huge pages, forks, samples of one prompt, tracebacks."""

import contextlib
import json
import os
import traceback
from pathlib import Path

import pytest
from tests.text import server as faults
from tests.text.server import Server

from pullback import text
from pullback.cli import _text_run
from pullback.errors import BudgetError, ModelError, RecordingError, UnsupportedError
from pullback.tape import Variable, vmap
from pullback.text import Module, Parameter, chat
from pullback.text.lm import Account, Budget, Journal, OpenAI, Record, Run, Scripted
from pullback.text.prices import Price, read_prices
from pullback.text.report import render_run

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
