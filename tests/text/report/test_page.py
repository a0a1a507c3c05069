"""The page of a run: offline, escaped, complete, and well formed."""

import html.parser
import re

import pytest

from pullback.errors import ArgumentError, ModelError
from pullback.tape import Function, Variable
from pullback.text import chat, join
from pullback.text.lm import (
    Completion,
    Finish,
    Image,
    Journal,
    Message,
    Plan,
    Run,
    Scripted,
    Tool,
    ToolCall,
    Usage,
    keep_secret,
)
from pullback.text.report import render_run, summarise

HOSTILE = (
    "</pre></details><script>alert('x')</script><img src=http://evil.example/x onerror=a()>\"'"
)
VOID = {"meta", "img", "br", "hr", "input", "link"}


class Reader(html.parser.HTMLParser):
    """Collects tags and attributes, and notices what is not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.faults = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


def page_of(path):
    with Journal(path) as journal:
        page = render_run(journal)
    reader = Reader()
    reader.feed(page)
    assert reader.faults == []
    assert reader.open == []
    return page, reader


class Ask(Function):
    @staticmethod
    def forward(ctx, prompt):
        return Variable(Ask.lm(prompt.data).text, role=f"answer {HOSTILE}")

    @staticmethod
    def backward(ctx, feedback):
        return Variable(f"said: {feedback.data}", role="note")


def test_everything_is_there_and_nothing_of_it_is_markup(tmp_path):
    path = tmp_path / "run.sqlite"
    keep_secret("sk-page-0123456789")
    Ask.lm = Scripted(
        [Completion(f"one {HOSTILE} sk-page-0123456789", Usage(10, 5, cost=0.25)), "two"],
        model=f"m {HOSTILE}",
    )
    with Run(path) as run:
        run.journal.note("program", ["pipeline.py", HOSTILE])
        run.expect(Plan(1, 2, 3))
        prompt = Variable(f"prompt {HOSTILE}", role=HOSTILE, requires_grad=True)
        answer = Ask.apply(prompt)
        answer.backward(Variable(HOSTILE, role="critique"))
        run.keep_graph(answer, HOSTILE)
        image = Image("https://evil.example/pixel.png")
        Ask.lm([Message("system", HOSTILE), Message("user", ["look", image])], stop=[HOSTILE])
        lost = Scripted([ModelError("lost", may_be_billed=True)])
        with pytest.raises(ModelError):
            lost("in doubt")
    page, reader = page_of(path)
    assert "script" not in reader.tags
    assert "img" not in reader.tags
    assert not any(name.startswith("on") for _, name, _ in reader.attributes)
    loaded = [value for _, name, value in reader.attributes if name in {"src", "href", "srcset"}]
    assert all(value.startswith("#") for value in loaded)
    assert "url(" not in re.sub(r"url\(#arrow\)", "", page)
    assert "@import" not in page
    assert "sk-page-0123456789" not in page
    text = "prompt &lt;/pre&gt;&lt;/details&gt;&lt;script&gt;"
    assert text in page
    for what in ("no answer arrived", "in doubt", "$0.250000", "at least 7 calls", "said: &lt;"):
        assert what in page, what
    assert ("a", "href", "#call-1") in reader.attributes
    assert ("details", "id", "call-1") in reader.attributes


def test_a_note_of_a_program_takes_no_name_that_the_page_reads(tmp_path):
    with Run(tmp_path / "run.sqlite") as run:
        for name in ("search", "graph:loss", "plan", "program", "damaged"):
            with pytest.raises(ArgumentError, match="this name"):
                run.note(name, "mine")
        run.note("mine", "said")
    with Journal(tmp_path / "run.sqlite") as journal:
        assert journal.notes() == {"mine": "said"}
        render_run(journal)


def test_an_empty_run_and_a_long_graph(tmp_path):
    empty = tmp_path / "empty.sqlite"
    Journal(empty).close()
    assert "No call was made" in page_of(empty)[0]
    x = Variable(1.0, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y + 1.0
    with Run(tmp_path / "long.sqlite") as run:
        run.keep_graph(y)
    page, reader = page_of(tmp_path / "long.sqlite")
    assert reader.tags.count("rect") == 400
    assert "steps more are not drawn" in page


def test_a_cost_that_is_not_known_is_never_shown_as_nothing(tmp_path):
    path = tmp_path / "run.sqlite"
    lm = Scripted([Completion("x", Usage(1, 1)), Completion("x", Usage(1, 1, cost=0.5))])
    lm.price = None  # by the token a script costs nothing
    with Run(path):
        lm("a")
        lm("b")
    page, _ = page_of(path)
    assert "price unknown" in page
    with Journal(path) as journal:
        summary = summarise(journal.calls())
    assert summary.cost == "$0.500000 and 1 calls of unknown price"


def test_a_structured_answer_and_a_call_of_tools_stand_in_their_boxes_with_their_cost(tmp_path):
    path = tmp_path / "run.sqlite"
    asked = ToolCall("c1", "add", '{"a": 1}')
    lm = Scripted([
        Completion('{"city": "Rome",  "n": 3}', Usage(1, 1, cost=0.25)),
        Completion("", Usage(1, 1, cost=0.5), Finish.TOOL_CALLS, None, (asked,)),
    ])  # fmt: skip
    tool = Tool("add", "adds", {"type": "object"})
    with Run(path) as run:
        start = Variable("x", role="start", requires_grad=True)
        city = chat(lm, start, schema={"type": "object"})["city"]
        called = chat(lm, city, tools=[tool])
        late = Variable("y", role="late", requires_grad=True)
        run.keep_graph(join(" ", [called["text"], late]))
    page, _ = page_of(path)
    assert page.count("$0.250000") == page.count("$0.500000") == 2  # the box, and the call
    assert "Rome&#34;, &#34;n" in page or "Rome&quot;, &quot;n" in page
    boxes = re.findall(r"translate\((\d+),\d+\)\"><title>(\w+) (\w*)", page)
    place = {role if title == "leaf" else title: int(x) for x, title, role in boxes}
    assert place["start"] < place["late"] < place["Join"]  # beside the step that takes it
