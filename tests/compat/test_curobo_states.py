"""Joint states of the steps: any object with the parts, and nothing else."""

from types import SimpleNamespace

import pytest
import torch

from pullback.compat import curobo
from pullback.errors import ArgumentTypeError

ACT = torch.zeros(2, 4, 3, dtype=torch.float64)
ROW, SQUARE, COLUMN = ACT[:, 0], torch.eye(4, dtype=torch.float64), torch.zeros(4, 1).double()
STATE = SimpleNamespace(position=ROW, velocity=ROW, acceleration=ROW)
STEPS = {
    "tensor_step_pos": lambda state, seq: curobo.tensor_step_pos(state, ACT, seq, SQUARE),
    "tensor_step_acc_semi_euler": lambda state, seq: curobo.tensor_step_acc_semi_euler(
        state, ACT, seq, None, SQUARE, SQUARE
    ),
    "tensor_step_pos_clique": lambda state, seq: curobo.tensor_step_pos_clique(
        state, ACT, seq, [COLUMN, SQUARE], [SQUARE] * 3
    ),
    "tensor_step_pos_ik": lambda state, seq: curobo.tensor_step_pos_ik(ACT, seq),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_is_no_joint_state_is_refused(name):
    assert STEPS[name](STATE, SimpleNamespace()).position.shape == ACT.shape
    for wrong in (None, torch.zeros(2, 4, 9)):
        with pytest.raises(ArgumentTypeError, match="state_seq is not a joint state"):
            STEPS[name](STATE, wrong)
    if name != "tensor_step_pos_ik":
        for wrong in (None, SimpleNamespace(position=None)):
            with pytest.raises(ArgumentTypeError, match="state is not a joint state"):
                STEPS[name](wrong, SimpleNamespace())


@pytest.mark.parametrize(
    "matrices", [(None, [SQUARE] * 3), ([COLUMN], [SQUARE] * 3), ([COLUMN, SQUARE], [SQUARE])]
)
def test_what_is_not_several_matrices_is_refused(matrices):
    with pytest.raises(ArgumentTypeError, match="not several matrices"):
        curobo.tensor_step_pos_clique(STATE, ACT, SimpleNamespace(), *matrices)
