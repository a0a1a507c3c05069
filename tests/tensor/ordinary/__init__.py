"""A hundred ordinary Functions as people write them, and all that second order can ask of them.

``python -m tests.tensor.ordinary`` prints the counts, and each refusal.
"""
