"""Functions as people write them, for tests of what happens around their rules."""

import torch

F = torch.autograd.Function


class Through:
    """x @ weight.T of a module that is an argument, or that the class remembers."""

    @staticmethod
    def of(place, module):
        class Linear(F):
            @staticmethod
            def forward(ctx, x, given):
                if place == "saved":
                    ctx.save_for_backward(given.weight)
                elif place == "attribute":
                    ctx.m = given
                return x @ given.weight.T

            @staticmethod
            def backward(ctx, g):
                if place == "saved":
                    return g @ ctx.saved_tensors[0], None
                return g @ (ctx.m if place == "attribute" else module).weight, None

        return Linear


def spike(slope):
    class Spike(F):
        """A step, with the slope of a fast sigmoid that is learnt."""

        @staticmethod
        def forward(ctx, v):
            ctx.save_for_backward(v)
            return (v > 0).to(v.dtype)

        @staticmethod
        def backward(ctx, g):
            (v,) = ctx.saved_tensors
            return g / (slope * v.abs() + 1) ** 2

    return Spike


class Sigmoid(F):
    @staticmethod
    def forward(ctx, x):
        y = 1 / (1 + torch.exp(-x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


class Square(F):
    """x**2 / 4, which saves its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x / 4

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x / 2


def _elementwise(name, value, slope, gradient="exact"):
    """A factory of a Function that saves its input, in the form of 2017."""

    def make():
        class Elementwise(F):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return value(x)

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return g * slope(x)

        Elementwise.gradient = gradient
        Elementwise.__name__ = name.title().replace(" ", "")
        return Elementwise

    return make


def _tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


_SMOOTH = _tensor(0.3, -0.7, 1.6, -2.4)

# A factory of each, values that hold its kinks, and values that do not.
KINKED = {
    "relu": (
        _elementwise("relu", torch.relu, lambda x: (x > 0).to(x.dtype)),
        _tensor(0.0, 0.0, 1.0, -1.0),
        _SMOOTH,
    ),
    "squared relu": (
        _elementwise("squared relu", lambda x: torch.relu(x) ** 2, lambda x: 2 * torch.relu(x)),
        _tensor(0.0, 0.0, 1.0, -1.0),
        _SMOOTH,
    ),
    "squared relu by clamp": (
        _elementwise("squared relu", lambda x: x.clamp(min=0) ** 2, lambda x: 2 * x.clamp(min=0)),
        _tensor(0.0, 0.0, 0.0, 0.0),
        _SMOOTH,
    ),
    "squared leaky relu": (
        _elementwise(
            "squared leaky relu",
            lambda x: torch.where(x > 0, x, 0.1 * x) ** 2,
            lambda x: 2 * torch.where(x > 0, x, 0.01 * x),
        ),
        _tensor(0.0, 0.0, 2.0, -0.5),
        _SMOOTH,
    ),
    "elu": (
        _elementwise(
            "elu",
            lambda x: torch.where(x > 0, x, x.exp() - 1),
            lambda x: torch.where(x > 0, torch.ones_like(x), x.exp()),
        ),
        _tensor(0.0, 0.0, 1.0, -1.0),
        _SMOOTH,
    ),
    "huber": (
        _elementwise(
            "huber",
            lambda x: torch.where(x.abs() <= 1, x * x / 2, x.abs() - 0.5),
            lambda x: x.clamp(-1, 1),
        ),
        _tensor(0.0, 1.0, -1.0, 3.0),
        _SMOOTH,
    ),
    "triangle spike": (
        _elementwise(
            "triangle spike",
            lambda x: (x >= 0).to(x.dtype),
            lambda x: (1 - x.abs()).clamp(min=0),
            "surrogate",
        ),
        _tensor(0.0, 1.0, -1.0, 0.5),
        _SMOOTH,
    ),
}


def stopped(how):
    """x**2, whose backward cuts 2 * x off in one of many ways."""

    class Stopped(F):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            if how == "no_grad":
                with torch.no_grad():
                    s = 2 * x
            elif how == "detach":
                s = 2 * x.detach()
            elif how == "data":
                s = 2 * x.data
            elif how == "item":
                s = torch.stack([g.new_tensor(2 * e.item()) for e in x])
            elif how == "torch.tensor":
                s = torch.tensor((2 * x).tolist(), dtype=g.dtype)
            else:
                s = torch.where(x.detach() > 0, 2 * x, -2 * x.abs())
            return s * g

    return Stopped


def Guided():
    class GuidedRelu(F):
        """ReLU whose backward lets through alpha of what is negative."""

        @staticmethod
        def forward(ctx, x, alpha):
            ctx.save_for_backward(x)
            ctx.alpha = alpha
            return torch.relu(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return torch.where(g > 0, g, ctx.alpha * g) * (x > 0), None

    return GuidedRelu


class Normalised(F):
    """Batch statistics, which move those of a module."""

    @staticmethod
    def forward(ctx, x, module):
        mean = x.mean(0)
        module.running_mean.mul_(1 - module.momentum).add_(mean, alpha=module.momentum)
        module.num_batches_tracked.add_(1)
        ctx.save_for_backward(x)
        return x - mean

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(0), None


class Dropout(F):
    """x**2 where a mask lets it through."""

    @staticmethod
    def forward(ctx, x, p, training):
        ctx.training = training
        if training:
            ctx.mask = (torch.rand_like(x) > p) / (1 - p)
        ctx.save_for_backward(x)
        return x * x * ctx.mask if training else x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * x * g * ctx.mask if ctx.training else 2 * x * g), None, None


class SpecialSpmm(F):
    """The product of a sparse matrix and a dense one, as graph attention networks have it."""

    @staticmethod
    def forward(ctx, indices, values, shape, b):
        a = torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)
        ctx.save_for_backward(a, b)
        ctx.N = shape[0]
        return torch.matmul(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_values = grad_b = None
        if ctx.needs_input_grad[1]:
            grad_a_dense = grad_output.matmul(b.t())
            edge_idx = a._indices()[0, :] * ctx.N + a._indices()[1, :]
            grad_values = grad_a_dense.reshape(-1)[edge_idx]
        if ctx.needs_input_grad[3]:
            grad_b = a.t().matmul(grad_output)
        return None, grad_values, None, grad_b


def Eigenvalues(saves):
    class Eigvalsh(F):
        @staticmethod
        def forward(ctx, a):
            values, vectors = torch.linalg.eigh(a)
            ctx.save_for_backward(vectors if saves == "vectors" else a)
            return values

        @staticmethod
        def backward(ctx, g):
            (kept,) = ctx.saved_tensors
            vectors = kept if saves == "vectors" else torch.linalg.eigh(kept)[1]
            return (vectors * g) @ vectors.T

    return Eigvalsh


class Softplus(F):
    """Keeps an intermediate, which torch takes for a constant."""

    @staticmethod
    def forward(ctx, x):
        exponential = x.exp()
        ctx.save_for_backward(exponential / (1 + exponential))
        return exponential.log1p()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class Scaled(F):
    """Keeps numbers and a shape as attributes."""

    @staticmethod
    def forward(ctx, x, scale=3.0):
        ctx.scale, ctx.shape = scale, x.shape
        return (x * scale).reshape(-1)

    @staticmethod
    def backward(ctx, g):
        return (g * ctx.scale).reshape(ctx.shape), None


class Parts(F):
    """Two outputs, of which one is not differentiable, in the split form."""

    @staticmethod
    def forward(x):
        return x * x.abs(), x > 0

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return 2 * x.abs() * g


class Boxed(F):
    """Keeps tensors as attributes, alone and in a list."""

    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.parts = x, [x * 2, (x * x).detach()]
        return x * ctx.parts[1]

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.parts[0] * ctx.x + ctx.parts[1])
