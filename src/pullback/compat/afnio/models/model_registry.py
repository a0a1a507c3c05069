"""The clients that were given a name."""

from pullback.compat.afnio.models.model import BaseModel

__all__ = ["MODEL_REGISTRY", "get_model", "register_model"]

MODEL_REGISTRY: dict[str, BaseModel] = {}


def register_model(model: BaseModel, model_id: str) -> None:
    """Keep a client under a name."""
    MODEL_REGISTRY[model_id] = model


def get_model(model_id: str) -> BaseModel | None:
    """The client of a name, or None."""
    return MODEL_REGISTRY.get(model_id)
