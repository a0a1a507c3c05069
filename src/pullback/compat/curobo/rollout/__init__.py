"""cuRobo's package ``rollout``."""

from pullback.compat.curobo.rollout import dynamics_model

__all__ = ["dynamics_model"]
