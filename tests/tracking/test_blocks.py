"""Statistics of blocks: dominated scales, underflow, what would lose less, and the advice."""

import functools
import math

import pytest
import torch
from tests.tracking.models import Around, sequential
from torch import nn
from torch.utils.checkpoint import checkpoint

from pullback.errors import ArgumentError, UnsupportedError
from pullback.tracking import BlockErrors, Tracker, read_run, simulate_format
from pullback.tracking.formats import (
    E4M3,
    ScaledFormat,
    find_format,
    round_values,
    signal_to_noise,
)
from pullback.tracking.formats._noise import measure_blocks


def by_hand(values, number_format, rotation=None):
    """The same, one block after the other."""
    size = number_format.per
    blocks = dominated = nonzero = underflow = 0
    signal = noise = 0.0
    for row in values.double():
        for block in row.split(size):
            given = block if rotation is None else block @ rotation
            rounded = round_values(given, number_format)
            largest = sorted(block.abs().tolist(), reverse=True)
            blocks += largest[0] > 0
            dominated += largest[0] > 0 and largest[0] >= 4 * largest[1]
            nonzero += int((block != 0).sum())
            underflow += int(((given != 0) & (rounded == 0)).sum())
            signal += block.square().sum().item()
            noise += (given - rounded).square().sum().item()
    return blocks, dominated, nonzero, underflow, signal, noise


def hadamard(size):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1, 1], [1, -1]], dtype=torch.float64), matrix)
    return matrix / math.sqrt(size)


@pytest.mark.parametrize("blocks", ["mxfp8", "mxfp4", 16, ScaledFormat("own", E4M3, 8, "E8M0")])
def test_the_figures_equal_those_of_each_block(blocks):
    x = torch.randn(6, 64) * torch.logspace(-3, 3, 64)[torch.randperm(64)]
    x[0] = 0
    known = ScaledFormat("16", E4M3, 16, "E8M0") if blocks == 16 else find_format(blocks)
    found = BlockErrors.of(x, blocks)
    *counts, signal, noise = by_hand(x, known)
    assert [found.blocks, found.dominated, found.nonzero, found.underflow] == counts
    assert (found.signal, found.noise) == pytest.approx((signal, noise))
    assert found.decibels == pytest.approx(signal_to_noise(x, known))
    halved = ScaledFormat("half", known.element, known.per // 2, known.scale)
    assert found.decibels_halved == pytest.approx(signal_to_noise(x, halved))
    rotated = by_hand(x, known, hadamard(known.per))[-1]
    assert found.noise_rotated == pytest.approx(rotated)


def test_an_outlier_dominates_its_block_and_a_rotation_spreads_it():
    x = torch.ones(4, 64)
    assert BlockErrors.of(x, "nvfp4").dominated == 0
    x[:, 5] = 1000.0
    x[:, 20:] = torch.randn(4, 44)
    found = BlockErrors.of(x, "mxfp4")
    assert (found.blocks, found.dominated) == (8, 4)
    assert found.underflow_share > 0.4
    even = torch.randn(64, 64)
    even[:, ::32] = 40.0
    rotated = BlockErrors.of(even, "mxfp4")
    assert rotated.decibels_rotated > rotated.decibels + 6


def test_figures_add_up_and_odd_data_pass():
    one, other = torch.randn(3, 32), torch.randn(5, 32)
    together = BlockErrors.of(torch.cat([one, other]), "mxfp8")
    added = BlockErrors.of(one, "mxfp8") + BlockErrors.of(other, "mxfp8")
    assert added.blocks == together.blocks
    assert added.noise == pytest.approx(together.noise)
    broken = one.clone()
    broken[0, 3], broken[1, 2] = math.nan, math.inf
    assert BlockErrors.of(broken, "mxfp8").blocks == 3
    for odd in (torch.tensor(3.0), torch.empty(0), torch.zeros(2, 5), torch.randn(3, 7).bfloat16()):
        assert BlockErrors.of(odd, 32).dominated_share >= 0
    assert math.isnan(BlockErrors.of(torch.zeros(4), 4).decibels)
    assert BlockErrors.of(torch.randn(2, 8, dtype=torch.complex64), 8).blocks == 4
    assert BlockErrors.of(torch.randn(2, 8).to(torch.float8_e4m3fn), 8).blocks == 2


@pytest.mark.parametrize(
    "name", ["MXFP8", "MXFP4", "NVFP4", "E4M3 tensor", "E4M3 channel", "int8", "E4M3"]
)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, complex(math.inf, 1.0)], ids=str)
def test_what_is_not_finite_is_left_out_and_spoils_nothing_beside_it(name, bad):
    x = torch.randn(4, 32, dtype=torch.complex64 if isinstance(bad, complex) else torch.float32)
    without, broken = x.clone(), x.clone()
    broken[0, 3], without[0, 3] = bad, 1j if isinstance(bad, complex) else 0
    found = signal_to_noise(broken, name)
    assert found == pytest.approx(signal_to_noise(without, name))
    if "FP" in name:
        assert BlockErrors.of(broken, name).decibels == pytest.approx(found)


@pytest.mark.parametrize("blocks", ["mxfp9", "E4M3", "int8", 24, 1, 0, True, "E4M3 tensor"])
def test_what_has_no_blocks_of_a_power_of_two_is_refused(blocks):
    with pytest.raises(ArgumentError, match=r"block|format of this name"):
        Tracker(sequential(), blocks=blocks)


class Small(nn.Module):
    """A model whose head's gradients have an outlier in each row, as those of a softmax have."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.body, self.norm = nn.Embedding(64, 32), nn.Linear(32, 32), nn.LayerNorm(32)
        self.head = nn.Linear(32, 64, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.body(self.token(x))))


def step(model, optimizer):
    x = torch.randint(64, (4, 16))
    logits = model(x)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten()).backward()
    optimizer.step()


@pytest.fixture(scope="module", params=[False, True])
def tracker(request):
    model = Small()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with Tracker(model, blocks="mxfp4", parameters=request.param) as tracker:
        for _ in range(3):
            step(model, optimizer)
    return tracker


def test_a_tracker_measures_each_tensor_and_what_layers_multiply(tracker):
    found = {str(key): each for key, each in tracker.block_errors().items() if not key.order}
    assert {"head", "head.weight", "head[input]", "body", "body.weight", "norm"} <= found.keys()
    assert "token[input]" not in found
    assert found["head[input]"].blocks == 3 * 4 * 16
    assert found["head.weight"].blocks == 3 * 64


def test_the_advice_is_one_sentence_and_a_recipe(tracker):
    advice = tracker.advise_blocks()
    assert advice.keep == (("head", "gradient"),)
    lost = advice.errors["head", "gradient"]
    assert lost.dominated_share == 0.5  # of each row of 64, the block with the target
    assert lost.decibels_rotated > lost.decibels + 3
    assert str(advice) == (
        f"Keep the gradient of head ({lost.decibels:.1f} dB, 50% of blocks ruled by an outlier) "
        "in higher precision, and the other 5 in MXFP4."
    )
    formats = advice.recipe("bf16").find("head")
    assert (str(formats.weight), str(formats.gradient)) == ("MXFP4", "bf16")
    assert str(advice.recipe().find("body").gradient) == "MXFP4"
    model = Small()
    step(simulate_format(model, recipe=advice.recipe()), torch.optim.SGD(model.parameters()))


def test_the_page_and_the_recording_have_the_figures(tracker, tmp_path):
    tracker.to_jsonl(tmp_path / "run.jsonl")
    assert (
        '"kind":"noise","module":"head","role":"gradient"' in (tmp_path / "run.jsonl").read_text()
    )
    tracker.to_html(tmp_path / "run.html")
    assert str(tracker.advise_blocks()) in (tmp_path / "run.html").read_text()
    assert read_run(tmp_path / "run.jsonl").advice == str(tracker.advise_blocks())
    assert tracker.table().endswith(str(tracker.advise_blocks()))


def test_outliers_are_kept_where_a_sum_of_squares_does_not_show_them():
    model = Small()
    with Tracker(model, blocks="nvfp4") as tracker:
        for _ in range(3):
            step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert tracker.advise_blocks().keep == (("head", "gradient"),)


def test_a_uniform_model_keeps_nothing_and_one_without_layers_has_nothing_to_say():
    model = nn.Sequential(nn.Linear(32, 32))
    with Tracker(model, blocks=32) as tracker:
        model(torch.randn(8, 32)).backward(torch.randn(8, 32))
        tracker.step()
    assert str(tracker.advise_blocks()).startswith("All 3 factors can be in MXFP8 by 32")
    with Tracker(nn.Tanh(), blocks=32) as tracker:
        pass
    assert "nothing to say" in str(tracker.advise_blocks())


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x, **how):
        run = functools.partial(checkpoint, **how) if how else lambda part, x: part(x)
        return self.second(run(self.first, x))


@pytest.mark.parametrize("how", [{}, {"use_reentrant": False}, {"use_reentrant": True}])
def test_the_advice_is_of_a_gradient_that_a_checkpoint_computes(how):
    model, x = Checkpointed(), torch.randn(8, 32, requires_grad=True)
    with Tracker(model, blocks="mxfp4") as tracker:
        model(x, **how).square().sum().backward()
    errors = tracker.advise_blocks().errors
    assert len(errors) == 6
    with torch.no_grad():
        of_first = 2 * model(x) @ model.second.weight
    expected = BlockErrors.from_sums(measure_blocks(of_first, find_format("MXFP4")))
    assert errors["first", "gradient"].decibels == pytest.approx(expected.decibels, abs=1e-3)


def test_the_advice_of_an_evaluation():
    model = Checkpointed().eval()
    with Tracker(model, blocks="mxfp4") as tracker, torch.no_grad():
        model(torch.randn(8, 32))
    assert {role for _, role in tracker.advise_blocks().errors} == {"activation", "weight"}


def test_a_norm_of_two_dimensions_multiplies_no_matrices():
    model = nn.Sequential(nn.LayerNorm((4, 32)), nn.RMSNorm((4, 32)), nn.Linear(32, 32))
    with Tracker(model, blocks="mxfp4") as tracker:
        model(torch.randn(8, 4, 32))
    assert {module for module, _ in tracker.advise_blocks().errors} == {"2"}


def test_without_blocks_it_says_how():
    with Tracker(nn.Linear(2, 2)) as tracker:
        pass
    with pytest.raises(UnsupportedError, match="blocks="):
        tracker.advise_blocks()


def test_nothing_is_read_during_a_step_and_training_is_not_disturbed():
    model, plain = Small(), Small()
    with Tracker(model, blocks="nvfp4"):
        torch.manual_seed(1)
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(1)
    step(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


class Layered(nn.Linear):
    """A layer with layers inside, as an adapter of low rank is."""

    def __init__(self):
        super().__init__(64, 64)
        self.down, self.up = nn.Linear(64, 32, bias=False), nn.Linear(32, 64, bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(64, 64)
        self.other = self.one

    def forward(self, x):
        return self.one(x)


@pytest.mark.parametrize(
    ("model", "outliers"),
    [
        (nn.Linear(64, 64), ("",)),
        (nn.Sequential(Layered()), ("0", "0.down")),
        (nn.Sequential(Layered()), ("0",)),
        (TwoNames(), ("one",)),
    ],
    ids=["root", "nested", "outer", "two-names"],
)
def test_a_recipe_keeps_what_the_advice_keeps_and_nothing_else(model, outliers):
    with torch.no_grad():
        for name in outliers:
            model.get_submodule(name).weight[:, 3] = 500.0
    x = torch.randn(128, 64)
    with Tracker(model, blocks="mxfp4") as tracker:
        model(x).backward(torch.randn(128, 64))
    advice = tracker.advise_blocks()
    assert {(name or "(root)", "weight") for name in outliers} <= set(advice.keep)
    simulated = simulate_format(model, recipe=advice.recipe("bf16"), measure=True)
    simulated(x).sum().backward()
    for each in simulated.noise():
        kept = (each.module or "(root)", each.role) in advice.keep
        assert each.number_format == ("bf16" if kept else "MXFP4"), each


def test_a_recipe_takes_names_as_they_are_and_not_as_patterns():
    model = nn.ModuleDict({"a[0]": nn.Linear(64, 8), "a0": nn.Linear(64, 8)})
    with torch.no_grad():
        model["a[0]"].weight[:, 3] = 500.0
    model.forward = lambda x: model["a[0]"](x) + model["a0"](x)
    with Tracker(model, blocks="mxfp4") as tracker:
        model(torch.randn(64, 64)).backward(torch.randn(64, 8))
    recipe = tracker.advise_blocks().recipe("bf16")
    assert str(recipe.find("a[0]").weight) == "bf16"
    assert str(recipe.find("a0").weight) == "MXFP4"


class Computed(nn.Module):
    """A layer whose weight is another one each time that it is asked for."""

    def __init__(self, *shape):
        super().__init__()
        self.kept = nn.Parameter(torch.randn(*shape))

    @property
    def weight(self):
        return self.kept + torch.randn(())

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def make_parametrized(module, parametrize):
    torch.manual_seed(0)
    return parametrize(module(32, 32))


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(make_parametrized, nn.Linear, nn.utils.parametrizations.spectral_norm),
        functools.partial(make_parametrized, nn.Linear, nn.utils.parametrizations.weight_norm),
        functools.partial(make_parametrized, Computed, lambda layer: layer),
    ],
    ids=["spectral-norm", "weight-norm", "property"],
)
@pytest.mark.parametrize("within", [True, False])
def test_a_weight_that_is_computed_is_not_computed_once_more(make, within):
    """A step of spectral normalisation, or of a generator, that the training has not."""
    x = torch.randn(8, 32)
    plain, model = make(), make()
    torch.manual_seed(1)
    expected = [plain(x), plain(x)]
    whole = nn.Sequential(model) if within else model
    torch.manual_seed(1)
    with Tracker(whole, blocks="mxfp4") as tracker:
        assert all(torch.equal(whole(x), one) for one in expected)
    name = "0" if within else "(root)"
    errors = tracker.advise_blocks().errors
    if isinstance(model, Computed):
        assert errors == {}
        return
    assert {(name, "weight"), (name, "activation")} <= errors.keys()
    assert errors[name, "weight"].blocks == 2 * 32
    if make.args[1] is nn.utils.parametrizations.weight_norm:
        once = BlockErrors.of(model.weight, "mxfp4")
        assert errors[name, "weight"].decibels == pytest.approx(once.decibels)


def test_an_input_that_is_passed_by_name_is_one():
    model = TwoNames()
    model.forward = lambda x: model.one(input=x)
    with Tracker(model, blocks="mxfp4") as tracker:
        model(torch.randn(4, 64))
    assert ("one", "activation") in tracker.advise_blocks().errors


@pytest.mark.parametrize("read", [signal_to_noise, BlockErrors.of], ids=["noise", "blocks"])
def test_what_cannot_be_read_is_refused(read):
    x = torch.randn(4, 32)
    for unreadable in (Around(x), x.to("meta")):
        with pytest.raises(UnsupportedError, match="no elements"):
            read(unreadable, "mxfp4")
    with pytest.raises(UnsupportedError, match="vmap"):
        torch.func.vmap(lambda x: (read(x, "mxfp4"), x)[1])(x)
    found = []
    torch.func.grad(lambda x: (found.append(read(x, "mxfp4")), x.sum())[1])(x)
    assert found == [read(x, "mxfp4")]
