"""torchao: what is plain torch."""

import torch

from benchmarks.kernels_in_use._made import r
from benchmarks.wild._case import Published

PACKAGE = "torchao"
FOLDER = "torchao"
REASONS = [
    ("torchao.prototype.float8nocompile", "needs Triton kernels for float8 of a GPU"),
    ("torchao.prototype.moe_training", "needs MXFP8, NVFP4 or grouped kernels of a GPU"),
    ("torchao.prototype.blockwise_fp8_training", "needs Triton kernels for float8 of a GPU"),
    ("torchao.prototype.common.triton", "needs a GPU: it asks Triton for its capability"),
    ("torchao.prototype.qat.nvfp4", "needs a GPU's products of float4"),
    ("torchao.prototype.spinquant", "needs the CUDA kernel of fast_hadamard_transform"),
    ("torchao.prototype.quantization.module_swap", "moves its tensors to a GPU"),
    (
        "torchao.quantization.qat.affine_fake_quantized_tensor",
        "its tensor has no view, which its own rounding asks of it",
    ),
    ("torchao.sparsity.training", "needs a GPU's sparse tensor cores"),
]


def emulated() -> object:
    """Products of float8 in float32, as on a GPU that has none."""
    from torchao.float8.float8_training_tensor import LinearMMConfig, ScaledMMConfig

    one = ScaledMMConfig(True, False, False, False)
    return LinearMMConfig(one, one, one)


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    """Into float8, whose tensors take few operations, and back."""
    from torchao.float8 import float8_training_tensor as float8

    there = float8._ToFloat8ConstrFunc.apply(x, torch.tensor(2.0), torch.float8_e4m3fn, emulated())
    return float8._FromFloat8ConstrFunc.apply(there)


class Widened(torch.autograd.Function):
    """What comes before a gradient of float8: it has few operations, and is made float32 again."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent: torch.Tensor) -> torch.Tensor:
        made = type(cotangent) is not torch.Tensor
        return cotangent.to_original_precision() if made else cotangent


def narrowed(x: torch.Tensor, *given: object) -> torch.Tensor:
    from torchao.float8.float8_scaling_utils import NoopFwToFloat8BwDynamic

    return NoopFwToFloat8BwDynamic.apply(Widened.apply(x), *given)


def float8_linear(g: torch.Generator) -> tuple[object, ...]:
    from torchao.float8.config import Float8LinearConfig

    return r(g, 16, 16), r(g, 16, 16), emulated(), Float8LinearConfig(emulate=True)


def int8_mixed(g: torch.Generator) -> tuple[object, ...]:
    from torchao.prototype.quantized_training import Int8MixedPrecisionTrainingConfig

    return r(g, 32, 32), r(g, 32, 32), r(g, 32), Int8MixedPrecisionTrainingConfig()


def int8_weight(g: torch.Generator) -> tuple[object, ...]:
    from torchao.prototype.quantized_training import Int8QuantizedTrainingLinearWeight

    weight = Int8QuantizedTrainingLinearWeight.from_float(r(g, 4, 8, grad=False))
    return r(g, 3, 8), weight, r(g, 4)


def bitnet(g: torch.Generator) -> tuple[object, ...]:
    from torchao.prototype.quantized_training.bitnet import BitNetTrainingLinearWeight

    return r(g, 32, 32), BitNetTrainingLinearWeight(r(g, 32, 32, grad=False)), r(g, 32)


def nf4(g: torch.Generator) -> tuple[object, ...]:
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    return r(g, 3, 128), to_nf4(r(g, 128, 128, grad=False))


def packed(g: torch.Generator) -> tuple[object, ...]:
    """Weights of two bits, four to a byte."""
    from torchao.prototype.quantized_training import bitnet as module

    bits = torch.randint(-1, 2, (32, 32), generator=g, dtype=torch.int8)
    weight = module.BitNetPacked2bitLinearWeight(module._pack_i2_in_i8(bits), torch.tensor(0.5))
    return r(g, 32, 32), weight, r(g, 32)


def microscaled(g: torch.Generator) -> tuple[object, ...]:
    """Blocks of 32 numbers of eight bits, each with its scale."""
    from torchao.prototype.qat.mx import MXFakeQuantizeConfig

    config = MXFakeQuantizeConfig(dtype=torch.float8_e4m3fn)
    return r(g, 32, 64), r(g, 32, 64), None, config, config


CASES = [
    Published("torchao.quantization.quant_primitives:_Round", lambda g: (r(g, 3, 8),),
              gradient="surrogate"),
    Published("torchao.quantization.quant_primitives:_RoundToFloat8",
              lambda g: (r(g, 3, 8), torch.float8_e4m3fn), gradient="surrogate"),
    Published("torchao.sparsity.supermask:GetSubnet",
              lambda g: (r(g, 4, 8).abs().detach().requires_grad_(), torch.zeros(4, 8),
                         torch.ones(4, 8), 0.5), gradient="surrogate"),
    Published("torchao.sparsity.supermask:ApplyMask",
              lambda g: (r(g, 4, 8), (r(g, 4, 8, grad=False) > 0).float()),
              gradient="surrogate"),
    Published("torchao.prototype.quantization.module_swap.quantizers:RoundStraightThrough",
              lambda g: (r(g, 3, 8),), gradient="surrogate"),
    Published("torchao.prototype.paretoq.models.utils_quant:LsqBinaryTernaryExtension",
              lambda g: (r(g, 3, 8), r(g, 3, 1).abs().detach().requires_grad_(), 3, False),
              gradient="surrogate"),
    Published("torchao.prototype.paretoq.models.utils_quant:StretchedElasticQuant",
              lambda g: (r(g, 3, 8), r(g, 3, 1).abs().detach().requires_grad_(), 2, False),
              gradient="surrogate"),
    Published("torchao.float8.float8_linear:matmul_with_hp_or_float8_args", float8_linear,
              gradient="surrogate"),
    Published("torchao.float8.float8_scaling_utils:NoopFwToFloat8BwDynamic",
              lambda g: (r(g, 16, 16), emulated(), torch.float8_e5m2), call=narrowed,
              gradient="nonlinear"),
    Published("torchao.float8.float8_training_tensor:_ToFloat8ConstrFunc",
              lambda g: (r(g, 16, 16),), call=there_and_back, gradient="surrogate"),
    Published("torchao.float8.float8_training_tensor:_FromFloat8ConstrFunc",
              lambda g: (r(g, 16, 16),), call=there_and_back, gradient="surrogate"),
    Published("torchao.prototype.quantized_training.bitnet:_BitNetTrainingLinear", bitnet,
              gradient="surrogate"),
    Published("torchao.prototype.quantized_training.int8:_Int8WeightOnlyLinear", int8_weight),
    Published("torchao.prototype.quantized_training.int8_mixed_precision:"
              "_Int8MixedPrecisionTrainingLinearFunction", int8_mixed, gradient="surrogate"),
    Published("torchao.quantization.quantize_.workflows.nf4.nf4_tensor:LinearNF4", nf4),
    Published("torchao.prototype.quantized_training.bitnet:_BitNetPacked2bitLinear", packed,
              gradient="surrogate"),
    Published("torchao.prototype.qat.mx:_MXQuantizedForwardFakeQuantizedBackward", microscaled,
              gradient="surrogate"),
]  # fmt: skip
