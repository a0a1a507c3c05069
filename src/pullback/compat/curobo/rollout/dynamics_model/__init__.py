"""cuRobo's package ``rollout.dynamics_model``."""

from pullback.compat.curobo.rollout.dynamics_model import integration_utils

__all__ = ["integration_utils"]
