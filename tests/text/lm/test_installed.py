"""What importing costs, and what a missing extra answers."""

import json
import subprocess
import sys
import textwrap

import pytest

from pullback.errors import ArgumentError
from pullback.text.lm import OpenAI
from pullback.text.prices import Price, price_of, read_prices


def run(program):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_it_imports_no_torch_and_no_extra():
    answer = run("""
        import sys
        import pullback.text, pullback.text.lm, pullback.text.report, pullback.text.prices
        from pullback.text.lm import Cached, Run, Scripted
        assert Cached(Scripted(["x"]))("x").text == "x"
        extras = "torch numpy numba openai stamina jsonschema pydantic xllamacpp".split()
        print([name for name in extras if name in sys.modules])
    """)
    assert answer.stdout.strip() == "[]", answer.stderr


def test_a_missing_extra_answers_with_the_command_that_installs_it():
    answer = run("""
        import sys

        class Without:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("openai", "xllamacpp", "stamina", "jsonschema"):
                    raise ModuleNotFoundError("No module named " + name, name=name)

        sys.meta_path.insert(0, Without())
        from pullback.text import lm
        from pullback.errors import MissingExtraError
        for use in (
            lambda: lm.OpenAI("m", base_url="http://localhost:1/v1"),
            lambda: lm.LlamaCpp(),
            lambda: lm.Retry(lm.Scripted(["x"])),
            lambda: lm.Scripted(["{}"])("x", schema={}),
        ):
            try:
                use()
            except MissingExtraError as error:
                print(" ".join(str(error).split()))
    """)
    for said, extra in zip(
        answer.stdout.splitlines(), ("openai", "local", "text", "text"), strict=True
    ):
        assert f"pip install 'pullback[{extra}]'" in said, answer.stderr


def test_prices_are_of_a_table_that_can_be_replaced(tmp_path, monkeypatch):
    assert price_of("gpt-4o-2024-08-06") == price_of("gpt-4o") == Price(2.5, 10.0, cached=1.25)
    assert price_of("gpt-4o-2024-05-13") == Price(5.0, 15.0)  # a date may have a price of its own
    assert price_of("gpt-4o-2099-01-01") is None
    assert price_of("gpt-5.4") is None  # dearer for long prompts: no one number is right
    assert Price(2.0, 4.0, cached=1.0).cost(1_000_000, 500_000, 500_000) == 3.5
    path = tmp_path / "prices.json"
    path.write_text(
        '{"models": {"gpt-4o": {"input": 1, "output": 2}, "mine": {"input": 0, "output": 0}}}'
    )
    monkeypatch.setenv("PULLBACK_PRICES", str(path))
    assert (price_of("gpt-4o"), price_of("mine")) == (Price(1, 2), Price(0, 0))
    assert OpenAI("mine", base_url="http://localhost:1/v1").price == Price(0, 0)
    broken = [{"input": -1, "output": 0}, {"input": "x", "output": 0}, {"input": 1}, 1]
    texts = ["", "[]", "{}", *(json.dumps({"models": {"a": price}}) for price in broken)]
    for number, text in enumerate(texts):
        bad = tmp_path / f"{number}.json"
        bad.write_text(text)
        with pytest.raises(ArgumentError):
            read_prices(bad)
    for bad_price in ((-1, 0), (float("nan"), 0), ("1", 0)):
        with pytest.raises(ArgumentError):
            Price(*bad_price)
