"""Define how change flows back through an operation once; run it every way; prove it right."""
