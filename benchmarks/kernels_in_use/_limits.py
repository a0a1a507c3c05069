"""Which clauses are left out for which package, and the time that a Function gets."""

__all__ = ["SECONDS", "WITHOUT"]

SECONDS = 60
# Under the interpreter two would judge it, not the kernel: neither Dynamo nor fake tensors see a
# kernel that it runs. The others run a kernel some hundred times, and it is slow.
INTERPRETED = ("compile", "fake", "values")
SLOW = (*INTERPRETED, "sizes", "rank", "first-call", "memory", "dtype", "autocast")
PLAIN = ("compile",)  # minutes
WITHOUT = {
    "bitsandbytes": PLAIN,
    "causal_conv1d": PLAIN,
    "deepspeed": INTERPRETED,
    "fla": SLOW,
    "liger": INTERPRETED,
    "mamba": SLOW,
    "megatron": PLAIN,
    "peft": PLAIN,
    "torchao": PLAIN,
    "transformer_engine": INTERPRETED,
    "unsloth": INTERPRETED,
    "xformers": PLAIN,
}
