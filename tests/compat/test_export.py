"""What shapes or follows a gradient refuses to be exported with it, and is exported without."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pullback.compat.torchlogix import GradFactor
from pullback.compat.unit_scaling import FPFormat, ScalePair, ScaleTracker
from pullback.tracking import Record, track

Function = Callable[[torch.Tensor], torch.Tensor]
FORMAT, RECORD, SCALES = FPFormat(4, 3, "nearest"), Record("y"), ScalePair()
FUNCTIONS: dict[str, Function] = {
    "GradFactor": lambda x: GradFactor.apply(x, 0.5),
    "FPFormat.quantise_fwd": FORMAT.quantise_fwd,
    "FPFormat.quantise_bwd": FORMAT.quantise_bwd,
    "track": lambda x: track(x, RECORD),
    "ScaleTracker": lambda x: ScaleTracker.track(x, SCALES),
}


class Model(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(2, 2), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


@pytest.mark.skipif(torch.__version__ < "2.9", reason="an export looks like a compilation there")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("strict", [False, True])
def test_an_export_with_gradients_is_refused(name: str, strict: bool) -> None:
    model, x = Model(FUNCTIONS[name]), torch.ones(1, 2)
    with pytest.raises(Exception, match=f"{name} cannot be exported with its gradient"):
        torch.export.export(model, (x,), strict=strict)
    model(x).sum().backward()  # it is refused there alone
    with torch.no_grad():
        exported = torch.export.export(model, (x,), strict=False).module()
        torch.testing.assert_close(exported(x), model(x))
