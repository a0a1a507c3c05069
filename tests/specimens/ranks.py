"""`distributed`: Functions with collectives, wrong as others have published them, and right.

Each wrong one names the thread in which its fault was told, and the words of the finding that must
tell it here. Written anew, as small as shows the fault; on two or three processes with gloo.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from tests.specimens._specimen import Specimen, normal

from pullback.conformance import Ranks

__all__ = ["RIGHT", "WRONG", "OnRanks"]

# Long: each fault stands beside its thread and the right version of the same.


@dataclass(frozen=True)
class OnRanks(Specimen):
    """A Function for several ranks.

    Arguments:
        ranks: how many, and what each is given.
        says: words of the finding.
        quick: whether it is looked at in every run of the tests.
    """

    ranks: Ranks | int = 2
    says: str = ""
    quick: bool = False


def total(x, group=None):
    """The sum over the ranks of a group, in a tensor of its own."""
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, group=group)
    return y


def gathered(x, group=None):
    """What each rank of a group holds, by rank."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format)
             for _ in range(dist.get_world_size(group))]  # fmt: skip
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def lengths(x):
    """How many rows each rank holds."""
    return [int(n) for n in gathered(torch.tensor([len(x)]))]


# Sums ---------------------------------------------------------------------------------------------


class AllReduce(torch.autograd.Function):
    """A loss on each rank: of a sum the adjoint is a sum."""

    @staticmethod
    def forward(ctx, x):
        return total(x)

    @staticmethod
    def backward(ctx, cotangent):
        return total(cotangent)


class ReduceFrom(AllReduce):
    """One loss on all ranks: Megatron's way out of a parallel region. Where each rank has a loss of
    its own it is wrong: https://github.com/Dao-AILab/flash-attention/issues/1244"""

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class CopyTo(AllReduce):
    """All ranks hold copies of the input: Megatron's way into a parallel region."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()


class CopyToLosesStrided(CopyTo):
    """Reduces a contiguous copy of a transposed cotangent, and returns the cotangent:
    https://github.com/NovaSky-AI/SkyRL/pull/1886"""

    @staticmethod
    def backward(ctx, cotangent):
        given = cotangent.clone()
        dist.all_reduce(given.contiguous())
        return given


class ReducesInput(AllReduce):
    """Sums into what it was handed, and does not mark it dirty:
    https://github.com/NVIDIA/Megatron-LM/pull/97"""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x.clone()


class ReducesCotangent(AllReduce):
    """Sums into the cotangent, which goes to a residual connection too:
    https://github.com/pytorch/pytorch/issues/141111"""

    @staticmethod
    def backward(ctx, cotangent):
        dist.all_reduce(cotangent)
        return cotangent.clone()


class ReducesLater(AllReduce):
    """Reads the sum before it is there; a future that is done once the work is queued:
    https://github.com/NERSC/sc24-dl-tutorial/pull/1"""

    @staticmethod
    def backward(ctx, cotangent):
        given = cotangent.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(given, async_op=True)
        return given.clone()


class ReducesAsync(AllReduce):
    """Asynchronous, and waited for."""

    @staticmethod
    def backward(ctx, cotangent):
        given = cotangent.clone(memory_format=torch.contiguous_format)
        work = dist.all_reduce(given, async_op=True)
        work.wait()
        return given


class ReducesInHalf(AllReduce):
    """Sums gradients in bfloat16 whatever they are:
    https://github.com/NVIDIA/TransformerEngine/issues/1761"""

    @staticmethod
    def backward(ctx, cotangent):
        return total(cotangent.bfloat16()).to(cotangent.dtype)


class ReducesInSingle(AllReduce):
    """Sums in float32, forward and backward."""

    @staticmethod
    def forward(ctx, x):
        return total(x.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, cotangent):
        return total(cotangent.float()).to(cotangent.dtype)


class SumsInHalf(AllReduce):
    """Sums in bfloat16, forward: so that fewer bytes are sent, it may be."""

    @staticmethod
    def forward(ctx, x):
        return total(x.bfloat16()).to(x.dtype)


# Gathers ------------------------------------------------------------------------------------------


class AllGather(torch.autograd.Function):
    """A loss on each rank: a shard's gradient is the sum of what all ranks send back for it."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = len(x)
        return torch.cat(gathered(x))

    @staticmethod
    def backward(ctx, cotangent):
        return total(cotangent)[dist.get_rank() * ctx.rows :][: ctx.rows]


class GatherFrom(AllGather):
    """One loss on all ranks: a shard's gradient is its slice. Where each rank has a loss of its
    own those of the others are lost: https://github.com/pytorch/xla/issues/5784"""

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent[dist.get_rank() * ctx.rows :][: ctx.rows].clone()


class GatherSumsOwnSlices(AllGather):
    """Each rank reduces the slice of its own shard, so that different ones are added:
    https://github.com/cellarium-ai/cellarium-ml/pull/184"""

    @staticmethod
    def backward(ctx, cotangent):
        return total(cotangent[dist.get_rank() * ctx.rows :][: ctx.rows])


class GatherLosesStrided(AllGather):
    """Reduces into a contiguous copy that nobody reads:
    https://github.com/pytorch/pytorch/issues/120386"""

    @staticmethod
    def backward(ctx, cotangent):
        found = cotangent.clone()
        if found.is_contiguous():
            dist.all_reduce(found)
        else:
            dist.all_reduce(found.contiguous())
        return found[dist.get_rank() * ctx.rows :][: ctx.rows]


class GatherInGroup(torch.autograd.Function):
    """Within a group."""

    @staticmethod
    def rank(group):
        return dist.get_rank(group)

    @classmethod
    def forward(cls, ctx, x, group):
        ctx.group, ctx.rank = group, cls.rank(group)
        return tuple(gathered(x, group))

    @staticmethod
    def backward(ctx, *cotangents):
        return total(torch.stack(cotangents), ctx.group)[ctx.rank], None


class GatherByGlobalRank(GatherInGroup):
    """Takes its part by the rank in the world: https://github.com/deepspeedai/DeepSpeed/issues/7672"""

    @staticmethod
    def rank(group):
        return dist.get_rank()


class UnevenGather(torch.autograd.Function):
    """Of shards of any length, none at all too."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = lengths(x)
        padded = x.new_zeros(max(ctx.rows), *x.shape[1:])
        padded[: len(x)] = x
        parts = gathered(padded)
        return torch.cat([part[:n] for part, n in zip(parts, ctx.rows, strict=True)])

    @staticmethod
    def backward(ctx, cotangent):
        rank = dist.get_rank()
        return total(cotangent)[sum(ctx.rows[:rank]) :][: ctx.rows[rank]]


class UnevenGatherFromFirst(UnevenGather):
    """Takes each shard to be as long as its own: the size mismatch of
    https://github.com/jzhang38/EasyContext/issues/47"""

    @staticmethod
    def backward(ctx, cotangent):
        rank = dist.get_rank()
        return total(cotangent)[rank * ctx.rows[rank] :][: ctx.rows[rank]]


class ScatterTo(torch.autograd.Function):
    """All ranks hold copies, each takes its slice: Megatron's, which
    https://github.com/NVIDIA/Megatron-LM/issues/1635 took for a fault."""

    @staticmethod
    def forward(ctx, x):
        return x.tensor_split(dist.get_world_size())[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx, cotangent):
        return torch.cat(gathered(cotangent))


class ScatterDivides(ScatterTo):
    """Divides by the number of ranks: https://github.com/facebookresearch/fairchem/pull/1067"""

    @staticmethod
    def backward(ctx, cotangent):
        return torch.cat(gathered(cotangent)) / dist.get_world_size()


# Broadcast ----------------------------------------------------------------------------------------


class Broadcast(torch.autograd.Function):
    """From one rank of a group; its gradient is the sum, that of the others zero."""

    @staticmethod
    def is_source(source, group):
        return dist.get_rank() == source

    @classmethod
    def forward(cls, ctx, x, source, group):
        ctx.group, ctx.sends = group, cls.is_source(source, group)
        y = x.clone()
        dist.broadcast(y, source, group=group)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        found = total(cotangent, ctx.group)
        return found if ctx.sends else torch.zeros_like(found), None, None


class BroadcastByGroupRank(Broadcast):
    """Compares the source, a rank in the world, with a rank in the group:
    https://github.com/pytorch/pytorch/issues/130515"""

    @staticmethod
    def is_source(source, group):
        return dist.get_rank(group) == source


# Layers -------------------------------------------------------------------------------------------


class Column(torch.autograd.Function):
    """A linear map with columns on each rank: all hold copies of its input."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        found = total(cotangent @ w.mT)
        return found if ctx.needs_input_grad[0] else None, x.mT @ cotangent


class ColumnWhereNeeded(Column):
    """Leaves its sum out where the input needs no gradient, so that the other ranks wait for it:
    https://github.com/chainer/chainermn/pull/214"""

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return total(cotangent @ w.mT) if ctx.needs_input_grad[0] else None, x.mT @ cotangent


class Gathered(torch.autograd.Function):
    """A linear map of a sequence in shards, gathered for it: the weight's gradient needs them."""

    @staticmethod
    def together(x):
        return torch.cat(gathered(x), 1)

    @classmethod
    def forward(cls, ctx, x, w):
        ctx.save_for_backward(x, w)
        return w @ torch.cat(gathered(x), 1)

    @classmethod
    def backward(cls, ctx, cotangent):
        x, w = ctx.saved_tensors
        columns = x.shape[1]
        found = total(w.mT @ cotangent)[:, dist.get_rank() * columns :][:, :columns]
        return found, cotangent @ cls.together(x).mT


class GatheredByRows(Gathered):
    """Gathers along the last dimension what lies one after the other along the first:
    https://github.com/NVIDIA/TransformerEngine/issues/530"""

    @staticmethod
    def together(x):
        return torch.cat(gathered(x)).reshape(len(x), -1)


class SyncNorm(torch.autograd.Function):
    """Batch normalisation over the rows of all ranks, however many each holds."""

    @staticmethod
    def mean(of_ranks, count):
        return total(of_ranks) / count

    @staticmethod
    def forward(ctx, x):
        count = total(x.new_tensor(len(x)))
        mean = total(x.sum(0)) / count
        scale = (total((x - mean).square().sum(0)) / count + 1e-5).rsqrt()
        y = (x - mean) * scale
        ctx.save_for_backward(y, scale, count)
        return y

    @classmethod
    def backward(cls, ctx, cotangent):
        y, scale, count = ctx.saved_tensors
        mean, along = cls.mean(torch.stack([cotangent.sum(0), (cotangent * y).sum(0)]), count)
        return (cotangent - mean - y * along) * scale


class SyncNormOfMeans(SyncNorm):
    """Takes the mean of the ranks' means, as if they held as many rows:
    https://github.com/pytorch/pytorch/pull/36382"""

    @classmethod
    def backward(cls, ctx, cotangent):
        y, scale, _ = ctx.saved_tensors
        means = torch.stack([cotangent.mean(0), (cotangent * y).mean(0)])
        mean, along = total(means.nan_to_num()) / dist.get_world_size()
        return (cotangent - mean - y * along) * scale


class VocabularyLoss(torch.autograd.Function):
    """Cross entropy of a vocabulary in shards, smoothed over all of it."""

    smoothing = 0.2

    @staticmethod
    def mean(logits, log_sum):
        return total((logits - log_sum[:, None]).sum(-1)), logits.shape[-1] * dist.get_world_size()

    @classmethod
    def forward(cls, ctx, logits, target):
        largest = logits.amax(-1).contiguous()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        log_sum = largest + total((logits - largest[:, None]).exp().sum(-1)).log()
        width = logits.shape[-1]
        hot = torch.nn.functional.one_hot(target, width * dist.get_world_size()).to(logits.dtype)
        ctx.hot = hot[:, dist.get_rank() * width :][:, :width]
        logs, ctx.many = cls.mean(logits, log_sum)
        ctx.save_for_backward((logits - log_sum[:, None]).exp())
        chosen = total((ctx.hot * (logits - log_sum[:, None])).sum(-1))
        return -(1 - cls.smoothing) * chosen - cls.smoothing * logs / ctx.many

    @classmethod
    def backward(cls, ctx, cotangent):
        (share,) = ctx.saved_tensors
        wanted = (1 - cls.smoothing) * ctx.hot + cls.smoothing / ctx.many
        return cotangent[:, None] * (share - wanted), None


class VocabularyLossOfShard(VocabularyLoss):
    """Smooths over its own shard, so that each rank has another loss:
    https://github.com/NVIDIA/Megatron-LM/issues/7464"""

    @staticmethod
    def mean(logits, log_sum):
        return (logits - log_sum[:, None]).sum(-1), logits.shape[-1]


def log_probability(logits, target):
    """Of a vocabulary in shards, by a sum that autograd knows nothing of, so that shards without
    the target get no gradient: https://github.com/modelscope/ms-swift/pull/9947"""
    width = logits.shape[-1]
    hot = torch.nn.functional.one_hot(target, width * dist.get_world_size()).to(logits.dtype)
    chosen = (hot[:, dist.get_rank() * width :][:, :width] * logits).sum(-1)
    with torch.no_grad():
        others = total(chosen) - chosen - total(logits.exp().sum(-1)).log()
    return chosen + others


# Rings --------------------------------------------------------------------------------------------


def passed_on(*tensors):
    """What the rank before holds; its own goes to the one after."""
    rank, count = dist.get_rank(), dist.get_world_size()
    found = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
    work = [dist.isend(t.contiguous(), (rank + 1) % count) for t in tensors]
    work += [dist.irecv(t, (rank - 1) % count) for t in found]
    for one in work:
        one.wait()
    return found


class Ring(torch.autograd.Function):
    """Attention over keys and values that go round the ranks."""

    @staticmethod
    def held(now, saved):
        return now

    @staticmethod
    def forward(ctx, q, k, v):
        largest, total_, y = q.new_full((len(q), 1), -torch.inf), 0.0, 0.0
        now = k, v
        for step in range(dist.get_world_size()):
            now = passed_on(*now) if step else now
            scores = q @ now[0].mT
            larger = torch.maximum(largest, scores.amax(-1, keepdim=True))
            share, kept = (scores - larger).exp(), (largest - larger).exp()
            total_ = total_ * kept + share.sum(-1, keepdim=True)
            y, largest = y * kept + share @ now[1], larger
        y = y / total_
        ctx.save_for_backward(q, k, v, y, largest + total_.log())
        return y

    @classmethod
    def backward(cls, ctx, cotangent):
        q, k, v, y, log_sum = ctx.saved_tensors
        along = (cotangent * y).sum(-1, keepdim=True)
        of_q, now = torch.zeros_like(q), (k, v, torch.zeros_like(k), torch.zeros_like(v))
        for _ in range(dist.get_world_size()):
            keys, values = cls.held(now[:2], (k, v))
            share = (q @ keys.mT - log_sum).exp()
            inner = share * (cotangent @ values.mT - along)
            of_q += inner @ keys
            now = *now[:2], now[2] + inner.mT @ q, now[3] + share.mT @ cotangent
            now = passed_on(*now)  # after a whole round each is where it belongs
        return of_q, now[2], now[3]


class RingOfFirst(Ring):
    """Differentiates by the keys and values that it saved, its own, in every step:
    https://github.com/huggingface/diffusers/issues/14265"""

    @staticmethod
    def held(now, saved):
        return saved


# Two groups of three ranks: the second and third among themselves.


def _in_group(rank):
    group = dist.new_group([1, 2])
    return (normal(2, 3, seed=rank), group) if rank else None


def _from_source(rank):
    group = dist.new_group([1, 2])
    return (normal(2, 3, seed=rank), 1, group) if rank else None


def _of_vocabulary():
    return normal(3, 4), torch.tensor([1, 6, 4])


def _attention():
    return normal(4, 3), normal(4, 3, seed=2), normal(4, 3, seed=3)


def _matrix():
    return (normal(4, 3),)


def _layer():
    return normal(5, 3), normal(3, 2, seed=2)


def _rows():
    return normal(3, 4), normal(2, 3, seed=2)


_OWN_LOSSES = Ranks(2, loss="sum")

RIGHT = [
    OnRanks(AllReduce, _matrix, says="the sum of a loss on each rank", quick=True),
    OnRanks(ReduceFrom, _matrix, says="the one loss that all ranks share"),
    OnRanks(ReduceFrom, _matrix, ranks=Ranks(2, loss="replicated")),
    OnRanks(CopyTo, _matrix, says="one args[0] of which all ranks hold copies"),
    OnRanks(ReducesAsync, _matrix),
    OnRanks(ReducesInSingle, _matrix),
    OnRanks(SumsInHalf, _matrix, says="no more digits than bfloat16"),
    OnRanks(AllGather, _matrix),
    OnRanks(GatherFrom, _matrix, says="the one loss that all ranks share"),
    OnRanks(UnevenGather, _matrix, says="uneven and empty on a rank"),
    OnRanks(ScatterTo, _matrix, says="one args[0] of which all ranks hold copies", quick=True),
    OnRanks(GatherInGroup, tuple, ranks=Ranks(3, _in_group)),
    OnRanks(Broadcast, tuple, ranks=Ranks(3, _from_source)),
    OnRanks(Column, _layer, says="one args[0]"),
    OnRanks(Gathered, _rows),
    OnRanks(SyncNorm, _matrix, says="uneven and empty on a rank"),
    OnRanks(VocabularyLoss, _of_vocabulary, says="the one loss that all ranks share"),
    OnRanks(Ring, _attention),
]
WRONG = [
    OnRanks(ReduceFrom, _matrix, "distributed", ranks=_OWN_LOSSES, says="not the derivative"),
    OnRanks(CopyToLosesStrided, _matrix, "distributed", says="cotangents that are transposed"),
    OnRanks(ReducesInput, _matrix, "distributed", says="Forward writes args[0]"),
    OnRanks(ReducesCotangent, _matrix, "distributed", says="writes the cotangent", quick=True),
    OnRanks(ReducesLater, _matrix, "distributed", says="comes late", quick=True),
    OnRanks(ReducesInHalf, _matrix, "distributed", says="not the derivative"),
    OnRanks(GatherFrom, _matrix, "distributed", ranks=_OWN_LOSSES, says="not the derivative"),
    OnRanks(GatherSumsOwnSlices, _matrix, "distributed", says="not the derivative"),
    OnRanks(GatherLosesStrided, _matrix, "distributed", says="cotangents that are", quick=True),
    OnRanks(GatherByGlobalRank, tuple, "distributed", ranks=Ranks(3, _in_group), says="IndexError"),
    OnRanks(UnevenGatherFromFirst, _matrix, "distributed", says="uneven"),
    OnRanks(ScatterDivides, _matrix, "distributed", says="not the derivative", quick=True),
    OnRanks(BroadcastByGroupRank, tuple, "distributed", ranks=Ranks(3, _from_source),
            says="not the derivative"),
    OnRanks(ColumnWhereNeeded, _layer, "distributed", says="waits in all_reduce", quick=True),
    OnRanks(GatheredByRows, _rows, "distributed", says="not the derivative"),
    OnRanks(SyncNormOfMeans, _matrix, "distributed", says="uneven", quick=True),
    OnRanks(VocabularyLossOfShard, _of_vocabulary, "distributed", says="not the derivative"),
    OnRanks(log_probability, _of_vocabulary, "distributed", says="not the derivative"),
    OnRanks(RingOfFirst, _attention, "distributed", says="not the derivative"),
]  # fmt: skip
