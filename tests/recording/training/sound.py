"""Programs in which nothing is wrong, though parts of them look as what is wrong elsewhere."""

# Long: a table of programs.

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tests.recording.training.dead import Net, linear
from tests.recording.training.loops import Two, classify, fit, fit_lightning, one_rank
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

PROGRAMS: dict[str, Callable[[], None]] = {}


def sound(program: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[program.__name__] = program
    return program


def sgd(*modules: nn.Module, lr: float = 0.1) -> Any:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=lr)


@sound
def plain() -> None:
    fit(Two())


@sound
def few_steps() -> None:
    fit(Two(), steps=1)


@sound
def adam_and_clipping() -> None:
    model = Two()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    for x, y in classify():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


@sound
def frozen_and_held() -> None:
    model = Two()
    model[0].requires_grad_(requires_grad=False)
    fit(model)


@sound
def frozen_and_not_held() -> None:
    backbone, head = linear().eval(), linear()
    optimizer = sgd(head)
    for x, y in classify():
        with torch.no_grad():
            h = backbone(x)
        optimizer.zero_grad()
        F.cross_entropy(head(h), y).backward()
        optimizer.step()


@sound
def unused_head_not_held() -> None:
    net = Net(torch.tanh, spare=linear())
    fit(net, sgd(net.first, net.last))


@sound
def unused_head_frozen() -> None:
    fit(Net(torch.tanh, spare=linear().requires_grad_(requires_grad=False)))


@sound
def adversarial_networks() -> None:
    generator, critic = linear(2, 4), linear(4, 1)
    of_generator, of_critic = sgd(generator), sgd(critic)
    for x, _ in classify():
        fake = generator(torch.randn(8, 2))
        of_critic.zero_grad()
        (critic(fake.detach()).mean() - critic(x).square().mean()).backward()
        of_critic.step()
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.5, 0.5)
        of_generator.zero_grad()
        (-critic(generator(torch.randn(8, 2))).mean()).backward()
        of_generator.step()


@sound
def weights_clipped_through_data() -> None:
    model = Two()
    optimizer = sgd(model)
    for x, y in classify():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        for p in model.parameters():
            p.data.clamp_(-0.5, 0.5)


@sound
def rarely_routed_experts() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = linear(4, 16)
            self.experts = nn.ModuleList(linear() for _ in range(16))

        def forward(self, x: Any) -> Any:
            weights, chosen = self.router(x).softmax(-1).max(-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                mine = chosen == number
                if mine.any():
                    out = out.index_put((mine,), expert(x[mine]) * weights[mine, None])
            return out

    fit(Experts())


@sound
def experts_without_items() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = linear(4, 16)
            self.experts = nn.ModuleList(linear() for _ in range(16))

        def forward(self, x: Any) -> Any:
            weights, chosen = self.router(x).softmax(-1).max(-1)
            parts = [expert(x[chosen == n]).sum(0) for n, expert in enumerate(self.experts)]
            return x * weights[:, None] + torch.stack(parts).sum(0)

    fit(Experts())


@sound
def layers_dropped_at_random() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(linear() for _ in range(6))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                if torch.rand(()) < 0.5:
                    x = x + layer(x)
            return x * 1.0

    model = Deep()
    optimizer = sgd(model)
    for x, y in classify():
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()


@sound
def lora() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = linear().requires_grad_(requires_grad=False)
            self.a, self.b = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.zeros(2, 4))

        def forward(self, x: Any) -> Any:
            return self.base(x) + x @ self.a @ self.b

    fit(Adapted())


@sound
def residual_scale_of_zero() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch, self.scale = linear(), nn.Parameter(torch.zeros(()))

        def forward(self, x: Any) -> Any:
            return x + self.scale * self.branch(x)

    fit(Residual())


@sound
def warm_up_from_nothing() -> None:
    model = nn.Sequential(linear(), linear())
    nn.init.zeros_(model[1].weight)
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
    for x, y in classify(8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()


@sound
def tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(4, 4), linear()
            self.head.weight = self.embedding.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.embedding(x.argmax(-1)))

    fit(Tied())


@sound
def accumulated() -> None:
    model = Two()
    optimizer = sgd(model)
    total = 0.0
    for step, (x, y) in enumerate(classify(12)):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        total += loss.item()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@sound
def scaler_that_skips() -> None:
    model = Two()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    for x, y in classify(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@sound
def compiled() -> None:
    fit(torch.compile(Net(torch.tanh), backend="eager", fullgraph=True))


@sound
def distributed() -> None:
    with one_rank():
        fit(nn.parallel.DistributedDataParallel(Net(torch.tanh)))


@sound
def lightning() -> None:
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Two()

        def training_step(self, batch: Any, number: int) -> Any:
            logits = self.net(batch[0])
            self.log("accuracy", (logits.argmax(-1) == batch[1]).float().mean())
            return F.cross_entropy(logits, batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    fit_lightning(Module())


@sound
def closures() -> None:
    model = Two()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = next(classify())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)


@sound
def mean_teacher() -> None:
    student = Two()
    teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)
    optimizer = sgd(student)
    for x, y in classify():
        with torch.no_grad():
            target = teacher(x)
        loss = F.cross_entropy(student(x), y) + F.mse_loss(student(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)


@sound
def teacher_that_requires_gradients() -> None:
    student = Two()
    teacher = copy.deepcopy(student)
    optimizer = sgd(student)
    for x, _ in classify():
        loss = F.mse_loss(student(x + 0.1), teacher(x).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.1)


@sound
def stop_gradient_of_one_branch() -> None:
    encoder, predictor = linear(), linear()
    optimizer = sgd(encoder, predictor)
    for x, _ in classify():
        one, other = encoder(x), encoder(x + 0.1 * torch.randn_like(x))
        loss = -F.cosine_similarity(predictor(one), other.detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@sound
def target_network() -> None:
    online, target = Two(), Two()
    optimizer = sgd(online)
    for step, (x, y) in enumerate(classify()):
        if step % 2 == 0:
            target.load_state_dict(online.state_dict())
        with torch.no_grad():
            wanted = target(x).max(-1).values
        loss = F.mse_loss(online(x).gather(-1, y[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@sound
def straight_through() -> None:
    fit(Net(lambda h: h + (h.round() - h).detach()))


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.detach().sign()

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        return cotangent


@sound
def surrogate_gradient() -> None:
    fit(Net(Sign.apply))


@sound
def quantised_codes() -> None:
    codes = nn.Embedding(8, 4)
    encoder, decoder = linear(), linear()
    optimizer = torch.optim.Adam([*codes.parameters(), *sgd_parameters(encoder, decoder)])
    for x, _ in classify():
        z = encoder(x)
        nearest = codes(torch.cdist(z, codes.weight).argmin(-1))
        loss = F.mse_loss(nearest, z.detach()) + F.mse_loss(z, nearest.detach())
        loss = loss + F.mse_loss(decoder(z + (nearest - z).detach()), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def sgd_parameters(*modules: nn.Module) -> list[Any]:
    return [p for module in modules for p in module.parameters()]


@sound
def hard_gumbel() -> None:
    fit(Net(lambda h: F.gumbel_softmax(h, hard=True)))


@sound
def truncated_in_time() -> None:
    cell, head = nn.RNNCell(4, 4), linear()
    optimizer = sgd(cell, head)
    hidden = torch.zeros(8, 4)
    for x, y in classify():
        hidden = cell(x, hidden.detach())
        loss = F.cross_entropy(head(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@sound
def checkpointed() -> None:
    block, head = linear(), linear()
    optimizer = sgd(block, head)
    for x, y in classify():
        h = checkpoint(block, x, use_reentrant=False)
        optimizer.zero_grad()
        F.cross_entropy(head(h), y).backward()
        optimizer.step()


@sound
def checkpointed_and_reentrant() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, block, head = linear(), linear(), linear()
        optimizer = sgd(first, block, head)
        for x, y in classify():
            h = checkpoint(block, first(x), use_reentrant=True)
            optimizer.zero_grad()
            F.cross_entropy(head(h), y).backward()
            optimizer.step()


@sound
def sparse_embedding() -> None:
    table, head = nn.Embedding(100, 4, sparse=True), linear()
    optimizers = [torch.optim.SparseAdam(table.parameters()), sgd(head)]
    for _, y in classify():
        loss = F.cross_entropy(head(table(torch.randint(100, (8,)))), y)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()


@sound
def style_of_an_image() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3)).eval()
    image = torch.randn(1, 1, 8, 8, requires_grad=True)
    optimizer = torch.optim.Adam([image])
    for _ in range(6):
        optimizer.zero_grad()
        network(image).square().mean().backward()
        optimizer.step()


@sound
def adversarial_examples() -> None:
    model = Two()
    optimizer = sgd(model)
    for x, y in classify():
        [push] = torch.autograd.grad(F.cross_entropy(model(x.requires_grad_()), y), x)
        moved = (x + 0.1 * push.sign()).detach()
        optimizer.zero_grad()
        F.cross_entropy(model(moved), y).backward()
        optimizer.step()


@sound
def gradient_penalty() -> None:
    critic = nn.Sequential(linear(), nn.Tanh(), linear(4, 1))
    optimizer = sgd(critic)
    for x, _ in classify():
        [slope] = torch.autograd.grad(critic(x.requires_grad_()).sum(), x, create_graph=True)
        optimizer.zero_grad()
        (slope.norm(dim=-1) - 1).square().mean().backward()
        optimizer.step()


@sound
def policy_and_critic() -> None:
    trunk, policy, value = linear(), linear(), linear(4, 1)
    optimizer = sgd(trunk, policy, value)
    for x, _ in classify():
        h = trunk(x).tanh()
        choice = torch.distributions.Categorical(logits=policy(h))
        action = choice.sample()
        advantage = action.float() - value(h)[:, 0]
        loss = -(choice.log_prob(action) * advantage.detach()).mean() + advantage.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@sound
def logged_in_every_way() -> None:
    model = Two()
    optimizer = sgd(model)
    seen: list[Any] = []
    for x, y in classify():
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        seen += [loss.item(), logits.detach().numpy().mean(), logits.argmax(-1).tolist()]
        seen += [{name: p.detach().clone() for name, p in model.named_parameters()}]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            seen.append(model(x).mean())


@sound
def released_later() -> None:
    encoder, head = linear(), linear()
    optimizer = sgd(encoder, head)
    for step, (x, y) in enumerate(classify(12)):
        h = encoder(x)
        h = h.detach() if step < 9 else h
        optimizer.zero_grad()
        F.cross_entropy(head(h), y).backward()
        optimizer.step()


@sound
def tasks_in_turn() -> None:
    trunk, one, other = linear(), linear(), linear()
    optimizer = sgd(trunk, one, other)
    for step, (x, y) in enumerate(classify(8)):
        head = one if step < 6 else other
        optimizer.zero_grad()
        F.cross_entropy(head(trunk(x)), y).backward()
        optimizer.step()


@sound
def normalised_weights() -> None:
    model = nn.Sequential(parametrizations.weight_norm(linear()), nn.BatchNorm1d(4), linear())
    fit(model)


@sound
def attention() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.norm = nn.MultiheadAttention(4, 2), nn.LayerNorm(4)

        def forward(self, x: Any) -> Any:
            return self.norm(self.attention(x, x, x, need_weights=False)[0])

    fit(Attends())


@sound
def one_updated_by_hand() -> None:
    model, scale = Two(), nn.Parameter(torch.ones(4))
    owner = nn.ParameterList([scale])
    optimizer = sgd(model)
    for x, y in classify():
        loss = F.cross_entropy(model(x) * owner[0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale -= 0.1 * scale.grad
        scale.grad = None


@sound
def physics() -> None:
    field = nn.Sequential(linear(1, 8), nn.Tanh(), linear(8, 1))
    optimizer = torch.optim.Adam(field.parameters())
    for _ in range(6):
        t = torch.rand(8, 1, requires_grad=True)
        u = field(t)
        [slope] = torch.autograd.grad(u.sum(), t, create_graph=True)
        loss = (slope + u).square().mean() + (field(torch.zeros(1, 1)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@sound
def functional() -> None:
    model = Two()
    optimizer = sgd(model)
    for x, y in classify():

        def loss(values: Any, x: Any = x, y: Any = y) -> Any:
            return F.cross_entropy(torch.func.functional_call(model, values, (x,)), y)

        gradients = torch.func.grad(loss)(dict(model.named_parameters()))
        for name, p in model.named_parameters():
            p.grad = gradients[name].detach()
        optimizer.step()


@sound
def sharpness_aware() -> None:
    model = Two()
    optimizer = sgd(model)
    for x, y in classify():
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / p.grad.norm() for p in model.parameters()]
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


@sound
def under_another_mode() -> None:
    with torch.device("cpu"):
        fit(Two())


@sound
def evaluation_alone() -> None:
    model = Two().eval()
    sgd(model)
    with torch.no_grad():
        for x, _ in classify():
            model(x).argmax(-1).tolist()


@sound
def optimisers_of_alternating_parts() -> None:
    encoder, decoder = linear(), linear()
    for part in (encoder, decoder):
        optimizer = sgd(part)
        for x, _ in classify():
            encoder.zero_grad()
            decoder.zero_grad()
            F.mse_loss(decoder(encoder(x)), x).backward()
            optimizer.step()


@sound
def optimiser_that_asks_for_no_gradients() -> None:
    class Evolution(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.add_(0.01 * torch.randn_like(p))

    model = Two()
    optimizer = Evolution(model.parameters(), {})
    for x, y in classify():
        with torch.no_grad():
            F.cross_entropy(model(x), y)
        optimizer.step()


@sound
def weights_bounded_through_a_view() -> None:
    model = Two()
    optimizer = sgd(model)
    for x, y in classify():
        with torch.no_grad():
            model[0].weight.view(-1).clamp_(-1, 1)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@sound
def parameters_are_a_dictionary() -> None:
    class Named(Two):
        def parameters(self, *args: Any, **kwargs: Any) -> Any:
            return dict(self.named_parameters())

    model = Named()
    optimizer = torch.optim.SGD(model.parameters().values(), lr=0.1)
    for x, y in classify():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
