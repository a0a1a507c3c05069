"""The loop."""

from pullback.compat.afnio.trainer.trainer import Trainer

__all__ = ["Trainer"]
