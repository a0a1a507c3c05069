"""The one way in: torch's own node where autograd is alone, and the engine below transforms."""
