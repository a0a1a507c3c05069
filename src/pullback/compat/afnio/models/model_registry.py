"""The clients that were given a name."""

from typing import Any

__all__ = ["MODEL_REGISTRY", "get_model", "register_model"]

MODEL_REGISTRY: dict[str, Any] = {}
get_model = MODEL_REGISTRY.get


def register_model(model: Any, model_id: str) -> None:
    """Keep a client under a name."""
    MODEL_REGISTRY[model_id] = model
