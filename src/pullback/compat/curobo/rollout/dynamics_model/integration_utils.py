"""cuRobo's ``rollout.dynamics_model.integration_utils``; see `pullback.compat.curobo`."""

from pullback.compat.curobo import _kernels, _matrices, _steps
from pullback.compat.curobo._kernels import *  # noqa: F403
from pullback.compat.curobo._matrices import *  # noqa: F403
from pullback.compat.curobo._steps import *  # noqa: F403

__all__ = sorted([*_kernels.__all__, *_matrices.__all__, *_steps.__all__])  # noqa: PLE0605 - in the order of the names
