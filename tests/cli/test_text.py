"""`pullback text run`, `show` and `replay`: real processes, a real server, a real Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from tests.text.server import Server, faults

from pullback.cli import main
from pullback.text.lm import Journal, Run, Scripted

KEY = "sk-command-0123456789"
PROGRAM = """
    import os, sys
    from pullback.tape import Function, Variable
    from pullback.text.lm import OpenAI, Plan, current_run
    from pullback.text.prices import Price

    class Ask(Function):
        @staticmethod
        def forward(ctx, prompt):
            return Variable(lm(prompt.data).text, role="answer")

        @staticmethod
        def backward(ctx, feedback):
            return Variable(f"Because of this: {feedback.data}", role="note")

    lm = OpenAI("m", base_url=os.environ["URL"], price=Price(1.0, 1.0))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    if current_run():
        current_run().expect(Plan(start=count, each=1, proposals=2))
    prompt = Variable("<script>alert(1)</script> 0", role="prompt", requires_grad=True)
    answer = Ask.apply(prompt)
    texts = [answer.data] + [lm(f"ask {n}").text for n in range(1, count)]
    answer.backward(Variable("<b>wrong</b>", role="critique"))
    if current_run():
        current_run().keep_graph(answer, "first")
    print("|".join(texts))
    if "boom" in sys.argv:
        raise ValueError("my key is " + os.environ["OPENAI_API_KEY"])
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "pipeline.py").write_text(textwrap.dedent(PROGRAM))
    return tmp_path


def command(place, server, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "pullback.cli", "text", *words],
        cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "URL": server.url, "OPENAI_API_KEY": KEY, "COLUMNS": "200"},
    )  # fmt: skip


def run(place, server, *words):
    process = command(place, server, *words)
    out, err = process.communicate(timeout=200)
    assert KEY not in out + err
    return process.returncode, out, err


@pytest.fixture
def here(place, monkeypatch, capsys):
    """The same command in this process, which takes a tenth of the time."""

    def run_here(server, *words):
        monkeypatch.chdir(place)
        for name, value in (("URL", server.url), ("OPENAI_API_KEY", KEY), ("COLUMNS", "200")):
            monkeypatch.setenv(name, value)
        status = main(["text", *words])
        out, err = capsys.readouterr()
        assert KEY not in out + err
        return status, out, err

    return run_here


def test_a_program_is_run_resumed_replayed_and_shown(place, here):
    with Server(lambda body: body["messages"][-1]["content"].upper()) as server:
        status, out, err = run(place, server, "run", "pipeline.py", "--calls", "9", "--", "3")
        assert (status, out) == (0, "<SCRIPT>ALERT(1)</SCRIPT> 0|ASK 1|ASK 2\n"), err
        assert "Budget: 9 calls in all." in err
        assert "at least 5 calls for 2 proposals; your budget of 9 calls allows 2" in err
        assert err.index("Plan:") < err.index("3 calls paid for now, 0 from the journal")
        again = here(server, "run", "pipeline.py", "--", "4")
        assert again[:2] == (0, out.strip() + "|ASK 3\n")
        assert "Resumes run.sqlite: 3 answers are paid for, $0.0000" in again[2]
        assert "1 calls paid for now, 3 from the journal" in again[2]
        asked = len(server.bodies)
        assert run(place, server, "replay", "run.sqlite")[:2] == again[:2]
        assert here(server, "replay", "run.sqlite", "--", "5")[0] == 1  # was never asked
        assert len(server.bodies) == asked == 4
        status, out, err = here(server, "show", "run.sqlite")
        assert status == 0, err
        assert re.search(r"m +4 +0 +\d+ +\d+ +\$0\.0000", out)
    page = (place / "run.html").read_text()
    assert "<script" not in page
    assert "&lt;SCRIPT&gt;ALERT(1)" in page
    assert "Because of this: &lt;b&gt;wrong&lt;/b&gt;" in page
    assert 'href="#call-1"' in page  # the step of the graph leads to its call


def test_a_budget_that_is_met_says_how_to_go_on(here):
    with Server() as server:
        status, _, err = here(server, "run", "pipeline.py", "-o", "b.sqlite", "--calls", "2")
        assert status == 1
        assert "The budget has no room for this: calls." in err
        assert "pullback text run pipeline.py -o b.sqlite" in err
        assert "Traceback" not in err
        assert here(server, "run", "pipeline.py", "-o", "b.sqlite", "--calls", "3")[0] == 0
        assert len(server.bodies) == 3


def test_an_interrupt_keeps_what_is_under_way_and_says_how_to_resume(place):
    # Tests that were started in the background ignore it, and so would what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Server(delay=0.4) as server:
        process = command(place, server, "run", "pipeline.py", "--", "50")
        deadline = time.monotonic() + 120
        while len(server.bodies) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)  # while the third call is under way
        _, err = process.communicate(timeout=200)
        assert process.returncode == 130, err
        assert "pullback text run pipeline.py -o run.sqlite -- 50" in err
        assert "3 calls paid for now" in err
        assert server.billed.total() == 3
        server.delay = 0
        status, _, err = run(place, server, "run", "pipeline.py", "--", "4")
        assert (status, server.billed.total()) == (0, 4), err


def test_a_program_that_fails_keeps_what_it_paid_for_and_shows_no_key(place, here):
    with Server(faults=[None, faults.status(401, f"bad key {KEY}")]) as server:
        status, _, err = here(server, "run", "pipeline.py")
        assert status == 1
        assert "HTTP 401" in err
        assert "1 calls paid for now" in err
        status, _, err = here(server, "run", "pipeline.py", "--", "3", "boom")
        assert status == 1
        assert "ValueError: my key is [key]" in err
        for path in place.iterdir():
            assert KEY.encode() not in path.read_bytes()


def test_a_step_that_fails_shows_where_in_the_program_it_did(place, here):
    (place / "pipeline.py").write_text(
        "from pullback.text import map_python\n"
        "def look_up(text):\n"
        "    return {}[text]\n"
        "map_python(look_up, 'a', purpose='look up')\n"
    )
    with Server() as server:
        status, _, err = here(server, "run", "pipeline.py")
    assert status == 1
    assert "line 3, in look_up" in err
    assert "line 4, in <module>" in err
    assert "pullback/text" not in err
    assert len(err.splitlines()) < 30


def test_an_answer_that_ended_a_program_is_asked_again(place, here):
    (place / "pipeline.py").write_text(
        "import os\n"
        "from pullback.text import chat\n"
        "from pullback.text.lm import OpenAI\n"
        "print(chat(OpenAI('m', base_url=os.environ['URL']), 'a').data)\n"
    )
    answers = iter(["", "fine"])
    with Server(lambda body: next(answers)) as server:
        status, _, err = here(server, "run", "pipeline.py")
        assert (status, "answered nothing" in err) == (1, True)
        for _ in range(2):  # the second comes from the journal
            assert here(server, "run", "pipeline.py")[:2] == (0, "fine\n")
        assert len(server.bodies) == 2


@pytest.mark.parametrize(
    ("source", "what"),
    [(b"print('\xe9')", "SyntaxError"), (b"a = 1\0", "null bytes"), (b"def f(:", "SyntaxError")],
)
def test_a_program_that_cannot_be_read_shows_no_line_of_others(place, here, source, what):
    (place / "pipeline.py").write_bytes(source)
    with Server() as server:
        status, _, err = here(server, "run", "pipeline.py")
    assert (status, what in err, "_text_run.py" in err) == (1, True, False), err


def test_what_a_terminal_obeys_is_written_out(place, here):
    with Run(place / "run.sqlite"):
        Scripted(["x"], model="\x1b[31mred")("x")
    with Server() as server:
        for end in ("raise ValueError(name)", "sys.exit(name)", "raise PullbackError(name)"):
            (place / "pipeline.py").write_text(
                "import sys; from pullback.errors import PullbackError\n"
                f"name = '\\33[31mred'; {end}"
            )
            for words in (["show", "run.sqlite"], ["run", "pipeline.py", "-o", "b.sqlite"]):
                _, out, err = here(server, *words)
                assert ("red" in out + err, "\x1b" in out + err) == (True, False)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["run", "none.py"], "no such program"),
        (["run", "."], "A program is a file."),
        (["run", "pipeline.py", "--calls", "-1"], "not negative"),
        (["show", "none.sqlite"], "no such journal"),
        (["show", "bad.sqlite"], "corrupt"),
        (["run", "pipeline.py", "-o", "bad.sqlite"], "corrupt"),
        (["run", "other.py", "-o", "run.sqlite"], "another program"),
        (["replay", "none.sqlite"], "no such journal"),
        (["replay", "empty.sqlite"], "does not say which program"),
        (["replay", "run.sqlite"], "is not there"),
    ],
)
def test_bad_words_are_refused(place, words, what, capsys, monkeypatch):
    monkeypatch.chdir(place)
    (place / "other.py").write_text("print(1)")
    (place / "bad.sqlite").write_text("no journal")
    Journal("empty.sqlite").close()
    with Journal("run.sqlite") as journal:
        journal.note("program", [str(place / "gone.py")])
    assert main(["text", *words]) == 2
    err = capsys.readouterr().err
    assert what in err
    assert "Traceback" not in err
