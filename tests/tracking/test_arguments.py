"""What is no argument of a public call of this room ends in an error of ours, before any work."""

import io
import math

import pytest
import torch
from tests.arguments import Call, public_calls, wrong_answers
from torch import nn

from pullback import tracking
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tracking import (
    BlockErrors,
    Record,
    Statistics,
    Tracker,
    advise_from_exponents,
    annotate,
    diff,
    formats,
    simulate_format,
    sinks,
    track,
)
from pullback.tracking.formats import (
    E4M3,
    NumberFormat,
    ProductFormats,
    Recipe,
    ScaledFormat,
    draw_noise,
    find_format,
    round_values,
    signal_to_noise,
)

X = torch.ones(2, 8)
FORMAT = {"exponent_bits": 4, "mantissa_bits": 3, "bias": 7, "largest": 448.0}


def model():
    return nn.Sequential(nn.Linear(8, 3), nn.ReLU())


def watched(**given):
    """A tracker that has seen two steps."""
    net = model()
    with Tracker(net, measures={"peak": lambda x: x.max()}, **given) as tracker:
        for _ in range(2):
            net(X).sum().backward()
            tracker.step()
    return tracker


def recorded():
    record = Record("x")
    track(torch.ones(3, requires_grad=True), record).sum().backward()
    record.flush()
    return record


SEEN, RECORD = watched(), recorded()
RUN = SEEN.run()


class Writer:
    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def log(self, values):
        self.scalars.append(values)


def write_lines(**given):
    sinks.JsonLines(**given).close()


def call(function, /, also=None, free="", **given):
    return lambda: Call(function, given, also or {}, free)


NO_FORMAT = dict.fromkeys(("weight", "activation", "gradient"), "none")
CALLS = {
    "BlockAdvice.recipe": lambda: Call(
        watched(blocks="mxfp4").advise_blocks().recipe, {"higher": "bf16"}, {"higher": "none"}
    ),
    "BlockErrors.of": call(BlockErrors.of, values=X, blocks="mxfp8"),
    "NumberFormat": call(
        NumberFormat,
        name="a",
        **FORMAT,
        infinite=False,
        signed_zero=True,
        dtype=None,
        also={"bias": "negative"},
    ),
    "ProductFormats": call(
        ProductFormats, weight="int4", activation="E4M3", gradient="E5M2", also=NO_FORMAT
    ),
    "Recipe": call(Recipe, rules={"*": ProductFormats(weight="int4")}),
    "Record": call(Record, name="x", every=2, history=9, backend="auto"),
    "Record.total": call(
        RECORD.total, direction="forward", call=0, order=0, recomputed=False, visit=0
    ),
    "ScaledFormat": call(
        ScaledFormat,
        name="a",
        element=E4M3,
        per="tensor",
        scale="float32",
        dim=-1,
        history=3,
        chosen=None,
        also={"per": "whole", "dim": "negative"},
    ),
    "Statistics.from_dict": call(Statistics.from_dict, data=Statistics.of(X).to_dict()),
    "Statistics.merge": call(Statistics.of(X).merge, other=Statistics.of(X)),
    "Statistics.of": call(Statistics.of, values=X),
    "Tracker": lambda: Call(
        Tracker,
        {
            "model": model(),
            "every": 2,
            "names": ["0"],
            "history": 9,
            "scaler": None,
            "jsonl": "x.jsonl",
            "backend": "auto",
            "parameters": True,
            "functions": ["softmax"],
            "measures": {"a": torch.max},
            "sinks": [],
            "blocks": "mxfp8",
        },
        {"names": "text empty", "parameters": "empty", "functions": "text empty", "sinks": "empty"},
    ),
    "Tracker.advise": call(SEEN.advise, name="0", direction="backward"),
    "Tracker.measured": call(
        SEEN.measured, name="0", statistic="peak", direction="forward", call=0
    ),
    "Tracker.total": call(
        SEEN.total, name="0", direction="forward", call=0, order=0, phase="training"
    ),
    "advise_formats": call(
        formats.advise_formats, values=X, formats=["E4M3"], also={"formats": "empty"}
    ),
    "advise_from_exponents": call(
        advise_from_exponents,
        exponents={0: 3},
        zeros=2,
        formats=["E4M3"],
        largest=1.5,
        smallest=1.5,
        also={"formats": "empty"},
    ),
    "annotate": lambda: Call(
        lambda model, cotangent, file, statistic: annotate(
            model, X, cotangent=cotangent, file=file, statistic=statistic
        ),
        {
            "model": model(),
            "cotangent": torch.ones(2, 3),
            "file": io.StringIO(),
            "statistic": "std",
        },
        {"cotangent": "none", "file": "none"},
    ),
    "channel_maximum": call(tracking.channel_maximum, dim=1, also={"dim": "negative"}),
    "diagnose": call(tracking.diagnose, run=RUN),
    "diff": call(diff, run_a=RUN, run_b=RUN, threshold=1.0),
    "draw_noise": call(draw_noise, values=X, generator=None),
    "find_format": call(find_format, name="E4M3"),
    "round_values": lambda: Call(
        round_values,
        {"values": X, "number_format": E4M3, "noise": draw_noise(X), "overflow": "cast"},
        {"noise": "none"},
    ),
    "signal_to_noise": call(signal_to_noise, values=X, number_format="E4M3"),
    "simulate_format": lambda: Call(
        simulate_format,
        {
            "target": model(),
            "forward": "E4M3",
            "backward": "E5M2",
            "rounding": "stochastic",
            "overflow": "cast",
            "generator": torch.Generator(),
            "recipe": None,
            "measure": True,
        },
    ),
    "track": call(track, values=X, record=Record("x")),
    # Sinks.
    "TensorBoard": lambda: Call(sinks.TensorBoard, {"target": Writer()}, {"target": "text"}),
    "WeightsAndBiases": lambda: Call(sinks.WeightsAndBiases, {"run": Writer()}),
}

# What the room makes, or calls itself at each step.
INSIDE = {
    *(
        f"{kind}.{verb}"
        for kind, verbs in {
            "BlockErrors": "from_sums",
            "JsonLines": "append write",
            "NumberFormat": "along round",
            "ProductFormats": "of",
            "Recipe": "check find",
            "ScaledFormat": "along check_dimension round scales",
            "SimulatedFormat": "forward run",
            "Sink": "write",
            "Statistics": "from_row",
            "TensorBoard": "write",
            "Tracker": "reduce",
            "WeightsAndBiases": "write",
        }.items()
        for verb in verbs.split()
    ),
    "BlockAdvice",
    "BlockErrors",
    "Change",
    "Finding",
    "FormatAdvice",
    "Key",
    "Observation",
    "Place",
    "QuantisationNoise",
    "Run",
    "Series",
    "SimulatedFormat",
    "Sink",
    "Statistics",
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where some wrong arguments name a file
    SEEN.to_jsonl("run.jsonl")


CALLS["read_run"] = call(tracking.read_run, path="run.jsonl")
CALLS["JsonLines"] = call(write_lines, path="steps.jsonl", what="steps")


def test_every_public_call_is_here():
    assert public_calls(tracking, formats, sinks) - INSIDE == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_by_its_name(name):
    right = CALLS[name]()
    right.function(**right.given)  # it is right otherwise
    assert list(wrong_answers(CALLS[name])) == []


BLOCKS = ScaledFormat("a", E4M3, "channel", dim=5)
WRONG = {
    "a function of one argument": lambda: Tracker(model(), names=lambda name: True),
    "a kernel for no device": lambda: Tracker(model(), backend="cuda"),
    "functions that are none": lambda: Tracker(model(), functions=3),
    "measures without names": lambda: Tracker(model(), measures=[torch.max]),
    "a sink that is no list": lambda: Tracker(model(), sinks=sinks.TensorBoard(Writer())),
    "a sink that is none": lambda: Tracker(model(), sinks=[3]),
    "a report without a file": lambda: SEEN.to_html(None),
    "lines without a file": lambda: SEEN.to_jsonl(3),
    "a picture without a file": lambda: SEEN.to_png(3),
    "a scaler that is none": lambda: Tracker(model(), scaler=3),
    "rules that are no recipe": lambda: simulate_format(model(), recipe={"*": None}),
    "a generator that is none": lambda: simulate_format(
        model(), forward="E4M3", rounding="stochastic", generator=3
    ),
    "integers to round": lambda: round_values(torch.arange(3), E4M3),
    "integers to draw for": lambda: draw_noise(torch.arange(3)),
    "noise beyond one": lambda: round_values(X, E4M3, noise=torch.full_like(X, 7.0)),
    "noise that is NaN": lambda: round_values(X, E4M3, noise=torch.full_like(X, math.nan)),
    "an unknown overflow": lambda: round_values(X, E4M3, overflow="x"),
    "scales along no dimension": lambda: round_values(X, BLOCKS),
    "scales along parts": lambda: round_values(
        torch.ones(3, dtype=torch.complex64), ScaledFormat("a", E4M3, "channel", dim=1)
    ),
    "a gradient's scales": lambda: simulate_format(X, backward=BLOCKS),
    "bits that are a fraction": lambda: NumberFormat("a", **FORMAT | {"exponent_bits": 4.0}),
    "more exponents than float64": lambda: NumberFormat("a", 20, 3, 7, 448.0),
    "more digits than float64": lambda: NumberFormat("a", 4, 60, 7, 448.0),
    "a bias that leaves float64": lambda: NumberFormat("a", 11, 3, 2000, 2.0**-500),
    "a largest beyond its exponents": lambda: NumberFormat("a", 3, 3, 3, 448.0),
    "a largest below its exponents": lambda: NumberFormat("a", 4, 3, -9, 448.0),
    "a channel of a fraction": lambda: tracking.channel_maximum(1.5),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused(name):
    with pytest.raises(ArgumentError):
        WRONG[name]()


@pytest.mark.parametrize("names", [{"0"}, (each for each in ["0"]), lambda name, module: True])
def test_names_may_be_gone_through_once(names):
    net = model()
    with Tracker(net, names=names, functions={"relu"}, parameters="value") as tracker:
        net(X)
    assert tracker.total("0").count == 6


def test_a_class_that_says_nothing_of_itself_is_named_alone():
    with pytest.raises(ArgumentTypeError) as caught:
        Statistics.of([1.0])
    assert caught.value.expected == "an instance of Tensor"


def test_patterns_in_a_set_are_text():
    with pytest.raises(ArgumentTypeError, match="Names are patterns"):
        Tracker(model(), names={1})


def test_an_error_of_a_statistic_names_it():
    net = model()
    with (
        pytest.raises(ZeroDivisionError) as caught,
        Tracker(net, measures={"share": lambda x: x / (1 // 0)}),
    ):
        net(X)
    assert caught.value.__notes__ == ["This was raised by the statistic 'share', of 0 [forward]."]


def test_every_count_is_kept():
    advice = advise_from_exponents({2000: 3, 1023: 2, -2000: 1, -1074: 1})["fp16"]
    assert (advice.count, advice.overflow, advice.underflow) == (7, 5, 2)


@pytest.mark.parametrize("exponents", [{0.5: 1, 0.7: 2}, {"a": 1}, [1], {0: 1.5}, {True: 1}])
def test_exponents_and_counts_are_whole_numbers(exponents):
    with pytest.raises(ArgumentError):
        advise_from_exponents(exponents)


@pytest.mark.parametrize(
    "ends",
    [
        {"largest": math.nan},
        {"largest": 100.0},
        {"largest": 0.5},
        {"largest": -1.0},
        {"smallest": 2.0},
        {"smallest": 0.25},
        {"smallest": 0.0},
        {"smallest": math.nan},
    ],
)
def test_ends_lie_in_the_histogram(ends):
    with pytest.raises(ArgumentError):
        advise_from_exponents({0: 1}, **ends)


@pytest.mark.parametrize("value", [1e300, 1e-300, 5e-324, 1.7e308, 2.0**128, 2.0**-150])
def test_what_statistics_put_into_open_bins_is_taken(value):
    total = Statistics.of(torch.tensor([value, 1.0], dtype=torch.float64))
    advice = advise_from_exponents(total.exponents, largest=total.max_abs, smallest=total.min_abs)
    assert advice["fp16"].overflow + advice["fp16"].underflow == 1


@pytest.mark.parametrize("values", [X, torch.ones(2, 8, dtype=torch.complex64)], ids=["x", "z"])
def test_formats_that_a_graph_makes_are_checked_within_it(values):
    def rounded(x):
        own = NumberFormat("a", **FORMAT)
        return round_values(x, ScaledFormat("b", own, 4, dim=-1), None)

    compiled = torch.compile(rounded, backend="eager", fullgraph=True)
    assert torch.equal(compiled(values), rounded(values))
