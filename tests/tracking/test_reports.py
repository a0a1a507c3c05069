import base64
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tracking.models import sequential, train
from torch import nn

from pullback import tracking
from pullback.errors import RecordingError
from pullback.tracking import (
    Key,
    Record,
    Run,
    Series,
    Statistics,
    Tracker,
    diff,
    read_run,
    simulate_format,
    track,
)
from pullback.tracking.formats import ProductFormats, QuantisationNoise, Recipe
from pullback.tracking.measure._layout import COUNT, MAX_ABS, MEAN
from pullback.tracking.report._html import render_html
from pullback.tracking.report._rows import thin
from pullback.tracking.run._log import Points, decode_points, encode_points, pack_points
from pullback.tracking.run._recording import write_run


def tracked(tmp_path: Path, steps: int = 5) -> tuple[Tracker, Path]:
    path = tmp_path / "live.jsonl"
    model = sequential()
    with Tracker(model, jsonl=path) as tracker:
        train(model, steps)
    return tracker, path


def test_the_recording_gives_the_run_back(tmp_path: Path) -> None:
    tracker, path = tracked(tmp_path)
    run, read = tracker.run(), read_run(path)
    assert [s.key for s in read.series] == [s.key for s in run.series]
    assert [s.total for s in read.series] == [s.total for s in run.series]
    assert diff(run, read, 0.0) == []
    for one, other in zip(run.series, read.series, strict=True):
        assert one.points.steps.tolist() == other.points.steps.tolist()
        assert np.abs(one.points.scale - other.points.scale).max() <= 1 / 512
        assert np.abs(one.points.peak - other.points.peak).max() <= 1 / 8


def test_to_jsonl_writes_the_history_and_exact_totals(tmp_path: Path) -> None:
    tracker, _ = tracked(tmp_path)
    tracker.to_jsonl(tmp_path / "after.jsonl")
    read = read_run(tmp_path / "after.jsonl")
    assert [s.total for s in read.series] == [s.total for s in tracker.run().series]
    for one, other in zip(tracker.run().series, read.series, strict=True):
        assert np.allclose(one.points.scale, other.points.scale, atol=1e-4)


def test_each_step_is_on_disk_when_it_ends(tmp_path: Path) -> None:
    path, counts = tmp_path / "live.jsonl", []
    model = sequential()
    with Tracker(model, jsonl=path):
        train(model, 3, after=lambda: counts.append(path.read_text().count('"seen"')))
    assert counts == [12, 24, 36]


def test_an_interrupted_recording_is_read_up_to_its_end(tmp_path: Path) -> None:
    _, path = tracked(tmp_path)
    text = path.read_text()
    path.write_text(text[: text.index('"total"') - 100])
    run = read_run(path)
    assert run.truncated
    assert len(run.series) == 12
    assert "interrupted" in render_html(run)


def test_a_nonfinite_run_survives_the_file(tmp_path: Path) -> None:
    model = sequential()
    with torch.no_grad():
        model[2].bias[0] = torch.inf
    with Tracker(model, jsonl=tmp_path / "a.jsonl") as tracker:
        model(torch.ones(2, 5)).sum().backward()
    read = read_run(tmp_path / "a.jsonl")
    run = tracker.run()
    assert read.first_nonfinite == run.first_nonfinite
    assert [key.name for key, _ in run.predecessors] == ["0", "1"]
    assert read.predecessors == run.predecessors
    assert read.first_nonfinite.key.name == "2"
    tracker.to_jsonl(tmp_path / "b.jsonl")
    again = read_run(tmp_path / "b.jsonl")
    assert (again.first_nonfinite, again.predecessors) == (run.first_nonfinite, run.predecessors)


@pytest.mark.parametrize(
    "text", ["", "{}\n", "no json\n", '{"kind":"run","version":99}\n', '{"kind":"total"}\n']
)
def test_what_is_no_recording_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError):
        read_run(path)
    with pytest.raises(RecordingError):
        read_run(tmp_path / "missing.jsonl")


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    tracker, _ = tracked(tmp_path, 1)
    for write in (tracker.to_html, tracker.to_jsonl, tracker.to_png):
        with pytest.raises(RecordingError):
            write(tmp_path / "no" / "folder.png")


def large_run(tensors: int, steps: int) -> Run:
    generator, series = np.random.default_rng(0), []
    for index in range(tensors):
        for order, direction in enumerate(("forward", "backward")):
            level = generator.normal(size=steps).cumsum()
            zeros = np.zeros(steps)
            points = Points(
                np.arange(steps), zeros.astype(int), level, level + 2, zeros, zeros.astype(np.uint8)
            )
            exponents = {e: int(n) for e, n in enumerate(generator.integers(1, 9999, 30), -30)}
            total = Statistics(
                sum(exponents.values()), 0.1, 9.0 + index, 0.2, 9.0, 1e-9, exponents=exponents
            )
            series.append(Series(Key(f"layer.{index}", 0, direction, order), total, points))
    return Run(tuple(series))


def test_a_page_of_a_thousand_tensors_is_small_and_offline() -> None:
    page = render_html(large_run(1000, 100))
    assert len(page.encode()) < 2e6
    assert not re.search(r"(src|href)=.?https?:|@import|url\(", page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    counts = [row[side]["count"] for row in data["rows"] for side in ("forward", "backward")]
    assert len(base64.b64decode(data["points"])) == 4 * sum(counts) == 4 * 2 * 1000 * 100


def test_a_long_run_is_thinned_and_keeps_its_first_infinity() -> None:
    run = large_run(2, 5000)
    run.series[0].points.flags[1234] = 2
    short = thin(run)
    assert len(short.series[1].points) == 400
    assert {0, 4999} <= set(short.series[1].points.steps.tolist())
    assert 1234 in short.series[0].points.steps
    assert len(render_html(run)) < 200_000


def test_names_cannot_break_the_page() -> None:
    key = Key("</script><script>alert(1)</script>")
    run = Run(
        (Series(key, Statistics.of(torch.ones(3)), large_run(1, 1).series[0].points),), title="<b>&"
    )
    page = render_html(run)
    assert "<script>alert" not in page
    assert "<b>&" not in page
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data[1])["rows"][0]["name"] == key.name


def test_the_page_shows_problems_first_and_merges_equal_tensors(tmp_path: Path) -> None:
    model = sequential()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    with Tracker(model) as tracker:
        train(model, 10)
    tracker.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    rows = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["rows"]
    assert [row["name"] for row in rows] == ["0", "1", "2", "3.0"]
    assert rows[3]["also"] == ["3", "(root)"]
    assert min(rows, key=lambda row: row["rank"])["problems"] == ["dead"]


def test_the_picture_has_the_rows_of_the_page_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import axes, figure

    drawn: list[str] = []
    title = axes.Axes.set_title

    def set_title(self: axes.Axes, text: str, loc: str = "center", **keywords: object) -> object:
        drawn.extend([text] * (loc == "left"))
        return title(self, text, loc=loc, **keywords)

    headings: list[str] = []
    monkeypatch.setattr(axes.Axes, "set_title", set_title)
    monkeypatch.setattr(figure.Figure, "suptitle", lambda self, text, **_: headings.append(text))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.ReLU()) for _ in range(8)))
    with torch.no_grad():
        model[3][0].bias.fill_(-100.0)
    with Tracker(model) as tracker:
        train(model, 3)
    tracker.to_png(tmp_path / "a.png")
    page = render_html(tracker.run())
    rows = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["rows"]
    ranked = sorted(rows, key=lambda row: row["rank"])  # as the page's script does at first
    assert [row["name"] for row in ranked[:12]] == [text.split(": ")[0] for text in drawn]
    assert drawn[0] == "3.1: dead"
    assert f"{len(rows) - 12} layers more" in headings[0]


def test_a_tangent_has_a_row_of_its_own() -> None:
    record = Record("x")
    _ = torch.func.jvp(lambda x: track(x, record), (torch.ones(3),), (torch.full((3,), 2.0),))
    page = render_html(record.run())
    rows = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["rows"]
    assert [row["name"] for row in rows] == ["x", "x · tangent"]


def test_a_tangent_is_no_value_in_the_table_and_has_no_gradient() -> None:
    record, x = Record("x"), torch.ones(3, requires_grad=True)
    track(x, record).square().sum().backward()
    _ = torch.func.jvp(lambda x: track(x, record), (torch.ones(3),), (torch.full((3,), 2.0),))
    lines = [re.split(r"\s{2,}", line.rstrip()) for line in record.table().splitlines()[2:]]
    assert [line[0] for line in lines] == ["x", "x · call 1", "x · call 1 · tangent"]
    assert [len(line) for line in lines] == [9, 5, 5]


def test_empty_runs_have_reports(tmp_path: Path) -> None:
    with Tracker(nn.Identity()) as tracker:
        pass
    tracker.to_html(tmp_path / "a.html")
    tracker.to_png(tmp_path / "a.png")
    tracker.to_jsonl(tmp_path / "a.jsonl")
    assert read_run(tmp_path / "a.jsonl").series == ()
    assert tracker.diagnose() == []


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    tracker, _ = tracked(tmp_path)
    tracker.to_png(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    write_run(tracker.run(), tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("values", "flags", "share"),
    [
        ([1.0, 2.0], 0, 0.0),
        ([0.0] * 1000 + [1.0], 0, 247 / 248),
        ([1.0] * 1000 + [0.0], 0, 1 / 248),
        ([0.0, -0.0], 16, 1.0),
        ([], 8, 0.0),
        ([math.nan, 0.0], 1 + 16, 0.0),
        ([math.inf, -math.inf, 3.0], 6, 0.0),
        ([math.nan, math.inf, -math.inf], 7 + 8, 0.0),
    ],
    ids=["plain", "almost all", "almost none", "zeros", "empty", "nan", "infinities", "nothing"],
)
def test_four_bytes_tell_what_a_moment_was(values: list[float], flags: int, share: float) -> None:
    encoded = encode_points(Statistics.of(torch.tensor(values)).to_row()[None])
    assert encoded.nbytes == 4
    point = decode_points(np.zeros(1), np.zeros(1), encoded)
    assert (int(point.flags[0]), float(point.zeros[0])) == (flags, share)
    finite = [abs(value) for value in values if math.isfinite(value)]
    if not finite:
        assert np.isnan(point.scale[0])
    elif not any(finite):
        assert point.scale[0] == -np.inf
    else:
        exact = math.log2(math.sqrt(sum(value**2 for value in finite) / len(finite)))
        assert abs(point.scale[0] - exact) <= 1 / 400
        assert abs(point.peak[0] - math.log2(max(finite))) <= 1 / 16 + 1 / 400


def test_four_bytes_reach_as_far_as_float64() -> None:
    scales = 2.0 ** np.concatenate(
        [np.linspace(-149.9, 127.9, 1001), np.linspace(-1074, 1023, 1001)]
    )
    rows = np.tile(Statistics(0).to_row(), (len(scales), 1))
    rows[:, COUNT], rows[:, MEAN], rows[:, MAX_ABS] = 4, scales, scales
    encoded = encode_points(rows)
    points = decode_points(np.zeros(len(scales)), np.zeros(len(scales)), encoded)
    off = np.abs(np.expm1((points.scale - np.log2(scales)) * math.log(2)))
    assert off[:1001].max() <= 0.002
    assert off.max() <= 0.08
    assert (points.peak >= points.scale).all()
    again = pack_points(points.scale, points.peak, points.zeros, points.flags)
    assert np.array_equal(again, encoded)


def simulated_run(tmp_path: Path) -> tuple[Tracker, nn.Module]:
    recipe = Recipe(
        {"2": ProductFormats("bf16", "bf16", "bf16"), "*": ProductFormats("MXFP4", "MXFP8")}
    )
    model = nn.Sequential(nn.Flatten(), simulate_format(sequential(), recipe=recipe, measure=True))
    train(model, 1)  # what was rounded before the block does not count
    with Tracker(model, jsonl=tmp_path / "live.jsonl") as tracker:
        train(model, 2)
    train(model, 1)
    return tracker, model


def test_the_noise_of_simulated_formats_is_in_every_report(tmp_path: Path) -> None:
    tracker, model = simulated_run(tmp_path)
    run = tracker.run()
    found = {(each.module, each.role): each for each in run.noise}
    assert list(found) == [
        ("1.model.0", "activation"),
        ("1.model.0", "weight"),
        ("1.model.2", "activation"),
        ("1.model.2", "weight"),
        ("1.model.2", "gradient"),
    ]
    whole = {(f"1.model.{each.module}", each.role): each.count for each in model[1].noise()}
    assert all(2 * each.count == whole[key] for key, each in found.items())  # 2 steps of 4
    assert (
        found["1.model.0", "weight"].decibels
        < found["1.model.0", "activation"].decibels
        < found["1.model.2", "weight"].decibels
    )
    table = tracker.table().split("\n\n")[1].splitlines()
    assert re.split(r"\s{2,}", table[0]) == [
        "module", "weight", "activation", "gradient", "(SQNR / dB)",
    ]  # fmt: skip
    assert len(table) == 3
    assert re.fullmatch(r"1\.model\.0 +\d\d\.\d MXFP4 +\d\d\.\d MXFP8", table[1])
    for path in (tmp_path / "live.jsonl", tmp_path / "after.jsonl"):
        tracker.to_jsonl(tmp_path / "after.jsonl")
        assert read_run(path).noise == run.noise


def test_the_page_has_a_bar_for_each_factor_of_each_layer(tmp_path: Path) -> None:
    tracker, _ = simulated_run(tmp_path)
    page = render_html(tracker.run())
    table = page[page.index('<table class="noise"') : page.index("</table>")]
    lines = table.split("<tr>")[2:]
    rows = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["rows"]
    for line, name in zip(lines, ("1.model.0", "1.model.2"), strict=True):
        assert name in line
        assert rows[int(re.search(r'data-row="(\d+)"', line)[1])]["name"] == name
        shares = dict(re.findall(r'<i class="(\w+)" style="--share:([\d.]+)%"', line))
        for each in tracker.run().noise:
            if each.module == name:
                assert f"{each.decibels:.1f} dB</span> <small>{each.number_format}" in line
                assert float(shares[each.role]) == pytest.approx(each.decibels / 0.6, abs=0.06)
    assert "not rounded" in lines[0]
    assert "not rounded" not in lines[1]
    least = min(tracker.run().noise, key=lambda each: each.decibels)
    assert f"{least.role} of {least.module}, {least.number_format}" in page
    assert '<table class="noise"' not in render_html(large_run(2, 2))


def test_noise_without_a_ratio_is_said_in_words(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[1].weight.zero_()
    simulated = simulate_format(model, forward="E4M3", measure=True)
    with Tracker(simulated) as tracker:
        simulated(torch.ones(2, 4))
    found = {(each.module, each.role): each.decibels for each in tracker.run().noise}
    assert found["model.0", "weight"] == math.inf
    assert math.isnan(found["model.1", "weight"])
    page = render_html(tracker.run())
    assert "nothing lost</span>" in page
    assert "all zero</span>" in page
    tracker.to_jsonl(tmp_path / "a.jsonl")
    assert [str(each) for each in read_run(tmp_path / "a.jsonl").noise] == [
        str(each) for each in tracker.run().noise
    ]
    worse = QuantisationNoise("<b>", "weight", "<i>", 3, -3.25)
    page = render_html(Run((), noise=(worse,)))
    assert 'class="alarm">-3.2 dB' in page
    assert "--share:0.0%" in page
    assert "<b><" not in page


def test_noise_of_modules_that_are_not_chosen_is_left_out() -> None:
    simulated = simulate_format(sequential(), forward="E4M3", measure=True)
    with Tracker(simulated, names="model.2") as tracker:
        simulated(torch.ones(2, 5))
    assert {each.module for each in tracker.run().noise} == {"model.2"}
    with Tracker(simulate_format(sequential(), forward="E4M3")) as tracker:
        pass
    assert tracker.run().noise == ()


def test_a_page_with_the_noise_of_a_thousand_layers_is_small() -> None:
    run = large_run(1000, 100)
    noise = tuple(
        QuantisationNoise(f"layer.{index}", role, "MXFP8 E5M2", 10**6, 20 + index / 100)
        for index in range(1000)
        for role in ("weight", "activation", "gradient")
    )
    assert len(render_html(replace(run, noise=noise)).encode()) < 2e6


def test_the_script_of_the_page_declares_each_name_once() -> None:
    """A browser runs nothing of a script that declares a name twice, and shows an empty page."""
    script = (Path(tracking.__file__).parent / "report/_page/report.js").read_text()
    names = re.findall(r"^(?:const|let|function) (\w+)", script, re.MULTILINE)
    assert len(names) > 20
    assert len(set(names)) == len(names)
