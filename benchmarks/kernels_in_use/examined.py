"""What became of each bad verdict when somebody looked: a page of `reproductions/`, or words.

The first line whose package and whose end of a Function's name fit speaks; an empty end fits all.
"""

__all__ = ["EXAMINED", "Examined"]

Examined = tuple[str, tuple[str, ...], tuple[str, ...], str]
IN_PLACE = (
    "LigerRMSNormFunction", "LigerPolyNormFunction", "LigerModulatedRMSNormFunction",
    "LigerLlama4RopeFunction", "LigerQwen2VLMRopeFunction",
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
    ("peft", ("HadaWeightCP",), ("derivative", "double"), "peft-loha-cp-gradient"),
    ("peft", ("BlockCircularConvolution",), ("derivative", "double"), "peft-c3a-input-gradient"),
]  # fmt: skip
