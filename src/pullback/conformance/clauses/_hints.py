"""What several clauses say about how to mend a Function."""

__all__ = ["COMPLETE", "DERIVE", "LIMIT", "OPERATOR", "SAVE", "SCALAR", "SINGLE", "TRACE"]

COMPLETE = "Write Function from pullback instead, or use pullback.complete(F)."
DERIVE = (
    "Write Function from pullback, which derives it from backward, or use pullback.complete(F)."
)
LIMIT = (
    "Backward is not finite where forward is: give a quotient its limit before dividing, as by "
    "torch.where on the divisor."
)
SAVE = "Pass it to ctx.save_for_backward (inputs, outputs and intermediates alike)."
SINGLE = (
    "Name the dimension that is meant, as in squeeze(-1): squeeze() takes away every dimension of "
    "size one, and a test of ndim or of a size then takes another path."
)
TRACE = (
    "Use torch operations in forward and backward, register kernels with torch.library.custom_op "
    "and register_fake, or use pullback.complete(F)."
)
# torch's hole, whatever the author of an operator writes: it has no way to register a tangent.
OPERATOR = (
    "torch drops the tangent of every operator of torch.library in forward mode, without an error. "
    "Call pullback.complete(operator), which derives it from the registered backward."
)
# A line of scripts: the real sum of all outputs as a function of the first input.
SCALAR = (
    "def f(x): return sum(y.sum().real for y in tree_leaves(call("
    "*[x if a is xs[0] else a for a in args], **kwargs)))"
)
