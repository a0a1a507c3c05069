"""What became of each bad verdict when somebody looked: a page of `reproductions/`, or words.

The first line whose package and whose end of a Function's name fit speaks; an empty end fits all.
"""

__all__ = ["EXAMINED", "Examined"]

Examined = tuple[str, tuple[str, ...], tuple[str, ...], str]
IN_PLACE = (
    "LigerRMSNormFunction", "LigerPolyNormFunction", "LigerModulatedRMSNormFunction",
    "LigerLlama4RopeFunction", "LigerQwen2VLMRopeFunction", "LigerRopeFunction",
)  # fmt: skip
ROPES = IN_PLACE[3:]

EXAMINED: list[Examined] = [
    ("liger-kernel", IN_PLACE, ("cotangent", "layout", "state", "retain", "checkpoint", "rank"),
     "liger-kernel-gradient-overwritten"),
    ("liger-kernel", (*ROPES, "LigerCrossEntropyFunction"),
     ("mutation", "checkpoint", "first-call"), "liger-kernel-inputs-overwritten"),
    ("liger-kernel",
     ("LigerSiLUMulFunction", "LigerGELUMulFunction", "LigerCrossEntropyFunction"),
     ("mutation", "layout", "retain", "repeated"), "liger-kernel-second-backward"),
    ("liger-kernel", ("LigerRMSNormFunction", "LigerLayerNormFunction"), ("double",),
     "liger-kernel-second-order"),
    ("liger-kernel", ("ops.fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction",),
     ("needs-input-grad",), "liger-kernel-head-alone"),
    ("liger-kernel", ("LigerGroupNormFunction",), ("derivative",),
     "not confirmed: right in float32 beside torch; in float64 the weight's is NaN here"),
    ("bitsandbytes", ("MatMul4Bit",), ("deterministic",),
     "not confirmed: five runs in float32 gave the same bits"),
    ("liger-kernel", ("LinearCrossEntropyFunction", "LinearJSDFunction", "LinearKLDivFunction"),
     ("layout",), "not confirmed: transposed inputs and weights gave right gradients"),
    ("peft", ("HadaWeightCP",), ("derivative", "double"), "peft-loha-cp-gradient"),
    ("peft", ("BlockCircularConvolution",), ("derivative", "double"), "peft-c3a-input-gradient"),
]  # fmt: skip
