"""Training loops of others: Hugging Face's way to call a model, and Lightning's hooks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracking.models import HuggingFaceStyle, sequential
from torch import nn

from pullback.tracking import Key, Statistics, Tracker


def test_a_model_that_returns_its_loss_in_a_dataclass() -> None:
    model = HuggingFaceStyle()
    optimizer = torch.optim.AdamW(model.parameters())
    with Tracker(model) as tracker:
        for _ in range(3):
            output = model(inputs=torch.randn(4, 5), labels=torch.tensor([0, 1, 1, 0]))
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    names = {key.name for key in tracker.totals()}
    assert {"(root).logits", "(root).loss", "encoder[hidden][0]", "encoder[hidden][1]"} <= names
    assert tracker.total("(root).loss", "backward").mean == 1.0
    assert tracker.total("encoder[hidden][0]", "backward").count == 3 * 12
    assert tracker.steps == 3


class Lit(nn.Module):
    """A module as Lightning trains it: it is never called, only its training_step is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = sequential()

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module: Lit, batches: list[torch.Tensor], accumulate: int, clip: float) -> None:
    """Lightning's automatic optimisation: the optimizer calls a closure that does the step.

    The closure runs training_step, zero_grad and backward, so that forward and backward happen
    inside of ``optimizer.step``; batches before the last of an accumulation run it by themselves.
    """
    optimizer = module.configure_optimizers()

    def closure_of(batch: torch.Tensor, index: int) -> Callable[[], Any]:
        def closure() -> torch.Tensor:
            loss = module.training_step(batch, index) / accumulate
            if index % accumulate == 0:
                optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), clip)
            return loss

        return closure

    module.train()
    for index, batch in enumerate(batches):
        closure = closure_of(batch, index)
        if (index + 1) % accumulate:
            closure()
        else:
            optimizer.step(closure)


@pytest.mark.filterwarnings("ignore")  # Lightning's own advice on workers, loggers and pytree
def test_lightning_itself() -> None:
    lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = sequential()

        training_step = Lit.training_step
        configure_optimizers = Lit.configure_optimizers

    module = Module()
    dataset = [torch.randn(5) for _ in range(24)]
    trainer = lightning.Trainer(
        max_epochs=1,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        accelerator="cpu",
    )
    with Tracker(module) as tracker:
        trainer.fit(module, torch.utils.data.DataLoader(dataset, batch_size=4))
    assert tracker.steps == 3
    assert tracker.total("net.0", "backward").count == 6 * 28


def test_lightnings_loop() -> None:
    module = Lit()
    batches = [torch.randn(4, 5) for _ in range(6)]
    with Tracker(module) as tracker:
        fit(module, batches, accumulate=2, clip=1.0)
    assert tracker.steps == 3
    assert tracker.total("net.0").count == 6 * 28
    assert tracker.total("net.0", "backward").count == 6 * 28
    assert {key.name for key in tracker.totals()} == {
        "net",
        "net.0",
        "net.1",
        "net.2",
        "net.3",
        "net.3.0",
    }


def places(tracker: Tracker, name: str) -> list[int]:
    (found,) = [each for each in tracker.run().series if each.key == Key(name, source="parameter")]
    return found.points.steps.tolist()


@pytest.mark.parametrize("every", [1, 3])
def test_what_a_second_optimizer_does_belongs_to_the_step_of_the_first(every: int) -> None:
    model = sequential()
    optimizers = [
        torch.optim.SGD(model[0].parameters(), 0.1),
        torch.optim.Adam(model[2].parameters()),
    ]
    values = Statistics(0)
    with Tracker(model, every=every, parameters=True) as tracker:
        for step in range(7):
            model(torch.randn(4, 5)).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if step % every == 0:
                values = values.merge(Statistics.of(model[2].weight))
    assert tracker.steps == 7
    for layer in ("0", "2"):
        assert places(tracker, f"{layer}.weight") == list(range(0, 7, every))
    assert tracker.total("2.weight") == values
    assert {key.visit for key in tracker.totals()} == {0}


class Potential(nn.Module):
    """Is never called: its parameters are used by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.centre, self.width = nn.Parameter(torch.randn(4)), nn.Parameter(torch.ones(4))


@pytest.mark.parametrize("every", [1, 2])
def test_steps_of_a_module_that_is_never_called(every: int) -> None:
    model = Potential()
    optimizers = [torch.optim.SGD([each], lr=0.1) for each in model.parameters()]
    updates = Statistics(0)
    with Tracker(model, every=every, parameters=True) as tracker:
        for step in range(4):
            ((torch.randn(4) - model.centre) / model.width).square().sum().backward()
            before = model.centre.detach().clone()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if step % every == 0:
                updates = updates.merge(Statistics.of(model.centre.detach() - before))
    assert tracker.steps == 4
    assert places(tracker, "centre") == places(tracker, "width") == list(range(0, 4, every))
    assert {key.visit for key in tracker.totals()} == {0}
    ratio = updates.scale / tracker.total("centre").scale
    assert tracker.update_ratios()["centre"] == pytest.approx(ratio)


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another one, as published: it moves the parameters once more."""

    def __init__(self, fast: torch.optim.Optimizer) -> None:
        self.fast = fast
        super().__init__(fast.param_groups, {})
        self.slow = [each.detach().clone() for each in self.parameters()]

    def parameters(self) -> list[torch.Tensor]:
        return [each for group in self.fast.param_groups for each in group["params"]]

    def step(self, closure: Any = None) -> None:
        self.fast.step()
        with torch.no_grad():
            for slow, parameter in zip(self.slow, self.parameters(), strict=True):
                parameter.copy_(slow.add_(0.5 * (parameter - slow)))


class Raising(torch.optim.SGD):
    """Its first step fails."""

    failed = False

    def step(self, closure: Any = None) -> Any:
        if not self.failed:
            self.failed = True
            raise FloatingPointError
        return super().step(closure)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_within_a_step_is_one_step(fails: bool) -> None:
    model = nn.Linear(3, 2, bias=False)
    fast = (Raising if fails else torch.optim.SGD)(model.parameters(), lr=0.1)
    optimizer = Lookahead(fast)
    if fails:
        with Tracker(model, parameters=True), pytest.raises(FloatingPointError):
            one_step(model, optimizer)
    updates, values = Statistics(0), Statistics(0)
    with Tracker(model, parameters=True) as tracker:
        if fails:
            fast.failed = False
            with pytest.raises(FloatingPointError):
                one_step(model, optimizer)
        for _ in range(3):
            before = model.weight.detach().clone()
            one_step(model, optimizer)
            updates = updates.merge(Statistics.of(model.weight.detach() - before))
            values = values.merge(Statistics.of(model.weight.detach()))
    assert tracker.steps == 3
    assert tracker.total("weight") == values
    assert tracker.total("weight[update]") == updates
    assert tracker.total("weight", "backward").count == 18


@pytest.mark.parametrize("every", [1, 2])
def test_optimizers_that_step_in_the_backward_pass(every: int) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    with Tracker(model, every=every) as tracker:
        for _ in range(4):
            model(torch.randn(4, 3)).square().sum().backward()
    counts = {
        (key.name, key.direction): total.count
        for key, total in tracker.totals().items()
        if key.name != "(root)"
    }
    assert counts == {
        ("0", "forward"): 48 // every,
        ("1", "forward"): 32 // every,
        ("0", "backward"): 48 // every,
        ("1", "backward"): 32 // every,
    }


@pytest.mark.parametrize("every", [1, 2])
def test_a_step_that_an_optimizer_ended_is_counted_once(every: int) -> None:
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracker(model, every=every) as tracker:
        for _ in range(4):
            model(torch.ones(4, 5)).sum().backward()
            optimizer.step()
            tracker.step()
        assert tracker.steps == 4
        tracker.step()  # nothing happened, and it was asked for
        assert tracker.steps == 5
    assert tracker.total("0").count == 4 // every * tracker.latest()[0].statistics.count


@pytest.mark.parametrize("shared", [True, False])
def test_an_optimizer_that_raised_holds_up_no_other(shared: bool) -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    failing = torch.optim.LBFGS((model if shared else other).parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracker(model, parameters=True) as tracker:
        with pytest.raises(ZeroDivisionError):
            failing.step(lambda: 1 / 0)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(5, 4)).sum().backward()
            optimizer.step()
    assert tracker.steps == 3
    assert tracker.total("weight").count == tracker.total("weight[update]").count == 3 * 8


@pytest.mark.parametrize(
    ("make", "states", "named"),
    [
        (torch.optim.Adafactor, {"row_var": 8, "col_var": 4}, set()),
        (torch.optim.LBFGS, {}, {"weight[d]", "weight[prev_flat_grad]"}),
        (torch.optim.ASGD, {"ax": 32}, set()),
    ],
)
def test_each_state_of_an_optimizer_is_measured_or_named(
    make: Any, states: dict[str, int], named: set[str]
) -> None:
    model = nn.Linear(4, 8)
    optimizer = make(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(5, 4)).square().mean()
        loss.backward()
        return loss

    with Tracker(model, parameters="state") as tracker:
        optimizer.step(closure)
    counts = {
        key.name: total.count for key, total in tracker.totals().items() if key.source == "state"
    }
    weight = {name: count for name, count in counts.items() if name.startswith("weight")}
    assert weight == {f"weight[{name}]": count for name, count in states.items()}
    assert set(tracker.skipped) == named
