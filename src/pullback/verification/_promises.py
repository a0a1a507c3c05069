"""The promises that a kernel makes, in the order in which they are tested."""

from pullback.verification import _conduct as conduct
from pullback.verification import _numbers as numbers
from pullback.verification._work import Promise

__all__ = ["PROMISES", "Promise"]

PROMISES = (
    Promise(
        "outputs", "its outputs are the reference's, within its rounding",
        "Compare the entry named here with the reference, term by term.", numbers.outputs,
    ),
    Promise(
        "forbidden", "it calls neither its reference nor what is forbidden",
        "Compute it.", conduct.forbidden, alone=True,
    ),
    Promise(
        "gradients", "its gradients are the reference's, within their rounding",
        "Derive the backward from the reference; pullback.check names the clause.",
        numbers.gradients,
    ),
    Promise(
        "second", "its second derivatives are the reference's, or refused",
        "Declare backward once_differentiable, or compute it of saved tensors by torch alone.",
        numbers.second,
    ),
    Promise(
        "sizes", "it is right at every size", "Mask the last block.", numbers.sizes,
    ),
    Promise(
        "dtype", "it is right in every floating dtype, or refuses it",
        "Accumulate in float32 and return the dtype of the input.", numbers.dtypes,
    ),
    Promise(
        "layout", "it is right for any strides, of inputs and of cotangents",
        "Use the strides, or call contiguous() first.", numbers.layouts,
    ),
    Promise(
        "values", "it is right at special values",
        "Subtract the largest score, add the reference's small number, mind both signs.",
        numbers.values,
    ),
    Promise(
        "caches", "it computes anew: it remembers no answer",
        "Key what is cached by nothing that a caller can reuse; cache no answers.", conduct.caches,
    ),
    Promise(
        "alias", "its outputs have memory of their own", "Allocate the output.", conduct.alias,
    ),
    Promise(
        "bounds", "it reads and writes within its inputs",
        "Mask loads and stores past the end.", conduct.bounds,
    ),
    Promise(
        "deterministic", "the same arguments give the same bits",
        "Sum in a fixed order.", conduct.deterministic,
    ),
    Promise(
        "state", "calls do not share what they keep",
        "Keep what backward needs on ctx, nothing elsewhere.", conduct.state,
    ),
    Promise(
        "mutation", "it writes to no input", "Write to a tensor of your own.", conduct.mutation,
    ),
    Promise(
        "settings", "it neither changes nor heeds global settings",
        "Take dtype and device from the input; seed nothing.", conduct.settings,
    ),
    Promise(
        "finished", "its work is done when it returns",
        "Wait for what was started before returning.", conduct.finished,
    ),
)  # fmt: skip
