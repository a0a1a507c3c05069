"""Functions that are right at first order and hide a dependence, made at random.

Each is judged by one rule: an answer is right, or it is refused by an error of `pullback.errors`.
`maths` says what is hidden, `stores` and `passages` where and how, `questions` which transform
asks, `circumstances` when, where and after what, `settings` what rules read from outside, `judge`
compares with a plain formula that hides nothing, and `campaign` runs many.

``python -m tests.tensor.hidden --answers 20000 --seed 1`` prints the counts of each hiding place.
"""
