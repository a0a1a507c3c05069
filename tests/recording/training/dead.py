"""Programs in which a parameter trains no more, each with what must be said of it.

Lines that cut a gradient end in ``# cut``.
"""

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.recording.training.loops import Two, classify, fit, one_rank
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

PROGRAMS: dict[str, tuple[Callable[[], None], set[tuple[str, str]]]] = {}


def dead(**kinds: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a program: kind = names of parameters, separated by spaces."""

    def register(program: Callable[[], None]) -> Callable[[], None]:
        said = {(kind, name) for kind, names in kinds.items() for name in names.split()}
        PROGRAMS[program.__name__] = (program, said)
        return program

    return register


def linear(i: int = 4, o: int = 4) -> nn.Linear:
    return nn.Linear(i, o, bias=False)


class Net(nn.Module):
    """Two layers and what lies between them."""

    def __init__(self, between: Callable[[Any], Any], **more: Any) -> None:
        super().__init__()
        self.first, self.last = linear(), linear()
        self.between = between
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: Any) -> Any:
        return self.last(self.between(self.first(x)))


@dead(cut="Net.first.weight")
def detach() -> None:
    fit(Net(lambda h: h.detach()))  # cut


@dead(cut="Net.first.weight")
def detach_in_place() -> None:
    fit(Net(lambda h: (h * 2).detach_()))  # cut


@dead(cut="Net.first.weight")
def data() -> None:
    fit(Net(lambda h: h.data.tanh()))  # cut


@dead(cut="Scaled.scale")
def item() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.last = nn.Parameter(torch.ones(())), linear()

        def forward(self, x: Any) -> Any:
            return self.last(x) * self.scale.item()  # cut

    fit(Scaled())


@dead(cut="Net.first.weight")
def numpy() -> None:
    def between(h: Any) -> Any:
        values = h.detach().numpy()  # cut
        return torch.from_numpy(np.tanh(values))

    fit(Net(between))


@dead(cut="Net.first.weight")
def integer() -> None:
    fit(Net(lambda h: h.long().float()))  # cut


@dead(cut="Net.first.weight")
def argmax() -> None:
    fit(Net(lambda h: F.one_hot(h.argmax(-1), 4).float()))  # cut


@dead(cut="Experts.router.weight")
def hard_routing() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = linear(4, 2)
            self.experts = nn.ModuleList([linear(), linear()])

        def forward(self, x: Any) -> Any:
            chosen = self.router(x).topk(1).indices[:, 0]  # cut
            outputs = torch.stack([expert(x) for expert in self.experts])
            return outputs[chosen, torch.arange(len(x))]

    fit(Experts())


@dead(cut="Encoder.0.weight Encoder.2.weight")
def no_grad() -> None:
    class Encoder(nn.Sequential):
        pass

    encoder, head = Encoder(linear(), nn.Tanh(), linear()), linear()
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()])
    for x, y in classify():
        with torch.no_grad():
            features = encoder(x)  # cut
        loss = F.cross_entropy(head(features), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@dead(cut="Net.first.weight")
def no_grad_decorator() -> None:
    @torch.no_grad()
    def normalised(h: Any) -> Any:
        return h / h.norm()  # cut

    fit(Net(normalised))


@dead(cut="Net.first.weight")
def kernel_without_a_rule() -> None:
    kernels = torch.library.Library("pullback_dead", "DEF")
    kernels.define("double(Tensor x) -> Tensor")
    kernels.impl("double", lambda x: x.detach() * 2, "CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own word, which is lost among others
        fit(Net(lambda h: 1.0 * torch.ops.pullback_dead.double(h)))  # cut
    del kernels


class ReturnsNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:  # cut in function_returns_none
        return None


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        return 2 * cotangent


class ReturnsZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:  # cut in function_returns_zeros
        return torch.zeros_like(cotangent)


@dead(cut="Net.first.weight")
def function_returns_none() -> None:
    fit(Net(ReturnsNone.apply))


@dead(cut="Two.0.weight")
def function_returns_none_for_what_a_function_has_made() -> None:
    class Lost(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, cotangent: Any) -> Any:  # cut
            return None

    model = Two()

    def run(x: Any) -> Any:
        weight = Twice.apply(model[0].weight)  # which makes zeros of nothing
        return model[1](Lost.apply(F.linear(x, weight)))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in classify():
        optimizer.zero_grad()
        F.cross_entropy(run(x), y).backward()
        optimizer.step()


@dead(zero="Net.first.weight")
def function_returns_zeros() -> None:
    fit(Net(ReturnsZeros.apply))


@dead(cut="Net.scale")
def function_that_closes_over_a_parameter() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * net.scale  # cut

        @staticmethod
        def backward(ctx: Any, cotangent: Any) -> Any:
            return cotangent

    net = Net(Scaled.apply, scale=nn.Parameter(torch.ones(4)))
    fit(net)


@dead(cut="Net.first.weight")
def write_of_a_leaf() -> None:
    buffer = torch.zeros(8, 4, requires_grad=True)

    def between(h: Any) -> Any:
        buffer.data.copy_(h)  # cut
        return buffer * 1.0

    fit(Net(between))


@dead(cut="Generator.weight")
def hypernetwork() -> None:
    class Generator(nn.Linear):
        pass

    generator, target = Generator(2, 16, bias=False), linear()
    optimizer = torch.optim.SGD([*generator.parameters(), *target.parameters()], lr=0.1)
    for x, y in classify():
        made = generator(torch.ones(2)).view(4, 4)
        with torch.no_grad():
            target.weight.copy_(made)  # cut
        loss = F.cross_entropy(target(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@dead(cut="Block.weight")
def reentrant_checkpoint() -> None:
    class Block(nn.Linear):
        pass

    block, head = Block(4, 4, bias=False), linear()
    optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x, y in classify():
            h = checkpoint(block, x, use_reentrant=True)  # cut
            loss = F.cross_entropy(head(h), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@dead(cut="Net.first.weight")
def tensor_of_a_tensor() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(Net(lambda h: torch.tensor(h, dtype=h.dtype)))  # cut


@dead(cut="Two.0.weight Two.1.weight")
def loss_made_anew() -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in classify():
        total = 0.0
        for part in range(2):
            loss = F.cross_entropy(model(x[part::2]), y[part::2])
            total += loss.item()  # cut
        optimizer.zero_grad()
        torch.tensor(total, requires_grad=True).backward()
        optimizer.step()


@dead(unused="Net.spare.weight")
def never_called() -> None:
    fit(Net(torch.tanh, spare=linear()))


@dead(unused="Deep.layers.2.weight")
def last_layer_left_out() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([linear(), linear(), linear()])

        def forward(self, x: Any) -> Any:
            for layer in self.layers[:-1]:
                x = layer(x).tanh()
            return x

    fit(Deep())


@dead(unused="Pooled.pooler.weight")
def pooler_as_of_hugging_face() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings, self.encoder = nn.Embedding(10, 4), linear()
            self.pooler, self.classifier = linear(), linear()

        def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
            hidden = self.encoder(self.embeddings(input_ids)).tanh()
            pooled = self.pooler(hidden[:, 0])
            logits = self.classifier(hidden[:, 0])
            return {"loss": F.cross_entropy(logits, labels), "logits": logits, "pooled": pooled}

    model = Pooled()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3))
    for _ in range(6):
        batch = {"input_ids": torch.randint(10, (4, 3)), "labels": torch.randint(4, (4,))}
        model(**batch)["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@dead(zero="Net.first.weight")
def rounded() -> None:
    fit(Net(lambda h: h.round()))  # cut


@dead(zero="Net.first.weight")
def saturated() -> None:
    fit(Net(lambda h: (h * 1e6 + 1e7).clamp(0, 1)))  # cut


@dead(zero="Attention.key.weight")
def softmax_of_one() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.value = linear(4, 1), linear()

        def forward(self, x: Any) -> Any:
            weights = self.key(x).softmax(-1)  # cut
            return weights * self.value(x)

    fit(Attention())


@dead(zero="Net.first.weight Net.shift")
def dying_relu() -> None:
    def between(h: Any) -> Any:
        return (h + net.shift).relu() + 1.0  # cut

    net = Net(between, shift=nn.Parameter(torch.full((4,), -1e3)))
    fit(net)


@dead(zero="Net.first.weight")
def dying_relu_in_place() -> None:
    def between(h: Any) -> Any:
        opened = F.relu_(h * 1.0 - 1e3)  # cut
        return opened.view(-1)._base.view(-1, 4) + 1.0

    fit(Net(between))


@dead(zero="Adapted.a Adapted.b")
def lora_with_two_zeros() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = linear().requires_grad_(requires_grad=False)
            self.a, self.b = nn.Parameter(torch.zeros(4, 2)), nn.Parameter(torch.zeros(2, 4))

        def forward(self, x: Any) -> Any:
            return self.base(x) + x @ self.a @ self.b

    fit(Adapted())


@dead(cut="Merged.a Merged.b")
def lora_merged_through_data() -> None:
    class Merged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.head = linear().requires_grad_(requires_grad=False), linear()
            self.a, self.b = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(2, 4))

        def forward(self, x: Any) -> Any:
            merged = self.base.weight + (self.a @ self.b).data  # cut
            return self.head(F.linear(x, merged))

    fit(Merged())


@dead(not_finite="Net.first.weight")
def root_at_zero() -> None:
    fit(Net(lambda h: h - (h - h).square().sum().sqrt()))


@dead(not_held="Linear.weight")
def optimiser_of_one_of_two() -> None:
    encoder, head = linear(), Two()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for x, y in classify():
        loss = F.cross_entropy(head(encoder(x).tanh()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@dead(not_held="Net.norm.weight Net.norm.bias")
def groups_that_leave_norms_out() -> None:
    net = Net(lambda h: net.norm(h).tanh(), norm=nn.LayerNorm(4))
    groups = [{"params": [p for name, p in net.named_parameters() if "norm" not in name]}]
    fit(net, torch.optim.AdamW(groups))


@dead(replaced="Net.last.weight")
def new_head_after_the_optimiser() -> None:
    net = Net(torch.tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.last = linear()
    fit(net, optimizer)


@dead(replaced="Tied.head.weight")
def tied_by_a_copy_after_the_optimiser() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = linear(), linear()

        def forward(self, x: Any) -> Any:
            return self.head(self.embedding(x).tanh())

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
    fit(model, optimizer)


@dead(replaced="Two#2.0.weight Two#2.1.weight")
def copied_after_the_optimiser() -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(copy.deepcopy(model), optimizer)


@dead(cut="Generator.weight")
def generator_of_detached_fakes() -> None:
    class Generator(nn.Linear):
        pass

    class Critic(nn.Linear):
        pass

    generator, critic = Generator(2, 4, bias=False), Critic(4, 1, bias=False)
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    for x, _ in classify():
        fake = generator(torch.randn(8, 2)).detach()  # cut
        of_critic.zero_grad()
        (critic(fake).mean() - critic(x).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()


@dead(cut="Net.first.weight")
def compiled() -> None:
    fit(torch.compile(Net(lambda h: h.detach().tanh()), backend="eager"))  # cut


@dead(cut="Net.first.weight")
def autocast_and_scaler() -> None:
    model = Net(lambda h: h.float().detach())  # cut
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step, (x, y) in enumerate(classify(8)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y) / 2
        scaler.scale(loss).backward()
        if step % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@dead(cut="Net.first.weight")
def distributed() -> None:
    with one_rank():
        model = nn.parallel.DistributedDataParallel(
            Net(lambda h: h.detach()),  # cut
            find_unused_parameters=True,
        )
        fit(model)


@dead(unused="Net.spare.weight")
def distributed_and_unused() -> None:
    with one_rank():
        net = Net(torch.tanh, spare=linear())
        fit(nn.parallel.DistributedDataParallel(net, find_unused_parameters=True))


@dead(cut="Module.backbone.weight")
def lightning() -> None:
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = linear(), linear()

        def training_step(self, batch: Any, number: int) -> Any:
            with torch.no_grad():
                h = self.backbone(batch[0])  # cut
            return F.cross_entropy(self.head(h), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    from tests.recording.training.loops import fit_lightning

    fit_lightning(Module())


@dead(cut="Recurrent.start.weight")
def truncated_at_every_step() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.cell = linear(), linear(8, 4)

        def forward(self, x: Any) -> Any:
            h = self.start(x)
            for _ in range(3):
                h = self.cell(torch.cat([x, h.detach()], -1)).tanh()  # cut
            return h

    fit(Recurrent())


@dead(cut="Gated.threshold")
def learned_threshold() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.threshold, self.last = nn.Parameter(torch.zeros(4)), linear()

        def forward(self, x: Any) -> Any:
            return self.last(x * (x > self.threshold))  # cut

    fit(Gated())


@dead(cut="Net.first.weight")
def python_list() -> None:
    fit(Net(lambda h: torch.tensor(h.tolist())))  # cut


@dead(unused="Two.spare.weight")
def head_without_a_loss() -> None:
    model = Two()
    model.spare = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in classify():
        h = model[0](x)
        model.spare(h)  # its answer is in no loss
        optimizer.zero_grad()
        F.cross_entropy(model[1](h), y).backward()
        optimizer.step()


@dead(cut="Low.down")
def view_where_no_gradients_are_recorded() -> None:
    class Low(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.last = nn.Parameter(torch.randn(4, 4)), linear()

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                h = x @ self.down.T  # cut
            return self.last(h)

    fit(Low())


@dead(cut="Net.first.weight")
def sample_without_gradients() -> None:
    fit(Net(lambda h: torch.distributions.Normal(h, h.exp()).sample()))  # cut


@dead(no_gradient="Two.0.weight Two.1.weight")
def gradients_cleared_before_the_step() -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in classify():
        F.cross_entropy(model(x), y).backward()
        optimizer.zero_grad()
        optimizer.step()


@dead(no_gradient="Linear.weight")
def backward_of_one_of_two_is_forgotten() -> None:
    encoder, head = linear(), Two()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (encoder, head))
    for x, y in classify():
        loss = F.cross_entropy(head(x), y)
        second.zero_grad()
        encoder(x).square().mean()  # its backward is forgotten
        loss.backward()
        first.step()
        second.step()


@dead(cut="Linear#1.weight")
def two_of_one_class() -> None:
    encoder, head = linear(), linear()
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    for x, y in classify():
        optimizer.zero_grad()
        F.cross_entropy(head(encoder(x).detach()), y).backward()  # cut
        optimizer.step()


class Beside(nn.Module):
    """A layer that trains, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = linear(), linear()

    def forward(self, x: Any) -> Any:
        return self.used(x)


def fit_by_closure(model: nn.Module, make: Callable[..., Any], log: Callable[[], object]) -> None:
    optimizer = make(model.parameters(), lr=0.1)
    x = torch.randn(5, 4)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)
        log()


@dead(unused="Beside.idle.weight")
def unused_and_read_by_the_optimizer() -> None:
    fit_by_closure(Beside(), torch.optim.LBFGS, lambda: None)


@dead(unused="Beside.idle.weight")
def unused_and_norms_logged() -> None:
    model = Beside()
    log = lambda: [each.norm().item() for each in model.parameters()]  # noqa: E731
    fit_by_closure(model, torch.optim.SGD, log)


@dead(unused="Beside.idle.weight")
def unused_and_histograms_logged() -> None:
    model = Beside()
    log = lambda: [each.detach().numpy().mean() for each in model.parameters()]  # noqa: E731
    fit_by_closure(model, torch.optim.SGD, log)


@dead(cut="Net.first.weight")
def cut_in_a_closure() -> None:
    model = Net(lambda h: h.detach())  # cut
    fit_by_closure(model, torch.optim.LBFGS, lambda: None)


@dead(cut="Net.first.weight")
def cut_after_a_step_that_raised() -> None:
    model = Net(lambda h: h.detach())  # cut
    optimizer = torch.optim.SGD(model.parameters())
    with contextlib.suppress(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    fit(model)
