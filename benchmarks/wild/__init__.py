"""The survey of published Functions: what works as published, and after `pullback.complete`."""
