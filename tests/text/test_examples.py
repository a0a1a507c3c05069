"""The example runs without a key, and against any server by one variable."""

import itertools
import os
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.text.server import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "support_triage.py"


@pytest.fixture
def example(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "TRIAGE_"))]:
        monkeypatch.delenv(name)
    return runpy.run_path(str(EXAMPLE))


def test_it_optimises_a_script_and_says_so(example, capsys, tmp_path):
    example["main"](tmp_path / "page.html")
    out = capsys.readouterr().out
    assert "asked: a script, not a model" in out
    assert "before: 17%" in out
    assert "after: 100%" in out
    page = (tmp_path / "page.html").read_text()
    assert "screen -&gt; computers" in page
    assert "<script" not in page


def test_one_variable_chooses_a_server_and_its_bad_answers_end_nothing(
    example, capsys, tmp_path, monkeypatch
):
    count = itertools.count(4)  # so that an answer is empty where the example looks for blame

    def answer(body):
        messages = [SimpleNamespace(text=each["content"]) for each in body["messages"]]
        said = example["follow"](SimpleNamespace(messages=messages))
        return said if next(count) % 20 else ""

    with Server(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        example["main"](tmp_path / "page.html")
        assert {body["model"] for body in server.bodies} == {"served"}
    out = capsys.readouterr().out
    assert "asked: served" in out
    assert "1 accepted" in out
    assert int(re.search(r"after: (\d+)%", out).group(1)) > 80
