"""Why each clause of the contract matters: what goes wrong for whoever relies on it."""

__all__ = ["WHY"]

WHY: dict[str, str] = {
    "derivative": "Training follows this gradient. A wrong one raises no error: the loss falls "
    "more slowly, or to a worse place, and nothing points at the cause.",
    "linear": "Autograd adds cotangents that arrive over several paths and scales them, for "
    "loss scaling as for weighted losses. That is right only for a backward that is linear in "
    "the cotangent and sends zero to zero.",
    "double": "Hessians, gradient penalties, meta-learning and Laplace approximations "
    "differentiate the gradient. They get a wrong number here, without a warning, although the "
    "first derivative is right.",
    "once": "A Function that does not support second derivatives must say so. Where it stays "
    "silent, the second derivative is taken as zero, and a penalty on the gradient does nothing.",
    "forward": "Forward mode computes directional derivatives and Jacobian-vector products. When "
    "it disagrees with backward, one of the two is wrong; when a tangent is dropped, the result "
    "is too small without a sign.",
    "forward-over-forward": "Second directional derivatives nest forward mode. torch answers some "
    "of these with zeros in place of an error.",
    "transforms": "torch.func.grad, vjp, jacrev and hessian must return what autograd returns. "
    "Code moved from one to the other would change its result.",
    "vmap": "Per-sample gradients and ensembles batch the Function with vmap. A wrong rule mixes "
    "samples.",
    "saved": "Tensors kept on the context outside save_for_backward are not checked for later "
    "changes, not moved by saved-tensor hooks, and keep memory alive.",
    "leak": "An output kept alive by a cycle is freed only when the garbage collector runs. On a "
    "GPU the memory of past steps piles up until an allocation fails.",
    "stale": "When a saved tensor is changed after forward, backward must notice. Otherwise it "
    "computes the gradient of something else.",
    "mutation": "An input changed in place and not declared with mark_dirty corrupts whatever "
    "else holds that tensor, and its version counter does not tell.",
    "cotangent": "The incoming gradient may be shared with other branches of the graph, or held "
    "by a hook or by the caller. Changing it in place changes their gradients too.",
    "layout": "Transposed, expanded, empty and zero-dimensional tensors are everyday inputs. "
    "A kernel that assumes contiguous memory reads other numbers than the tensor holds.",
    "form": "Gradients of another shape, dtype or device than their input are cast, summed or "
    "refused somewhere downstream, far from the cause.",
    "needs-input-grad": "Frozen layers and partial fine-tuning skip unneeded gradients. Computing "
    "them wastes time and memory; skipping the wrong one loses a gradient.",
    "undefined": "An output that the loss does not use has no cotangent. Backward must treat it "
    "as zero, not fail and not reuse another one.",
    "non-differentiable": "Integer outputs, masks and indices carry no gradient; every other "
    "output must, or its part of the loss is dropped without a word.",
    "alias": "An output that shares memory with an input changes when that input is changed. "
    "Autograd has to know it, or it works with values that are gone.",
    "deterministic": "The same inputs and seed must give the same bits, or a run cannot be "
    "repeated and a fault cannot be pinned down.",
    "state": "Two live calls that share state overwrite each other: shared weights, several "
    "losses, data-parallel threads.",
    "retain": "A second backward over a retained graph must give the same gradient again. "
    "Backward must not use up what forward saved.",
    "checkpoint": "Activation checkpointing runs forward again to save memory. The gradient must "
    "be the same with it as without.",
    "hooks": "Saved-tensor hooks move activations to the CPU or compress them, and buffers must "
    "be freed after backward. What bypasses the hooks stays in memory.",
    "dtype": "Mixed precision, bfloat16 training and complex models use other dtypes than the "
    "one it was written with. A gradient of the wrong dtype or far off rounding spoils them.",
    "autocast": "Under autocast, forward runs in low precision while backward runs outside of it. "
    "A Function without a policy mixes the two.",
    "fake": "torch.compile, torch.export and memory planners run the Function on tensors without "
    "data. Wrong shapes there become wrong code later.",
    "compile": "A compiled model must compute what the eager one does, backward included. A "
    "backward that is dropped while compiling trains something else.",
    "structure": "Tensors inside dicts, lists and keyword arguments look differentiable. torch "
    "passes them through as constants and drops their gradient.",
    "cuda-graph": "Captured graphs replay without Python. Whatever depended on the values at "
    "capture is frozen into every later step.",
}
