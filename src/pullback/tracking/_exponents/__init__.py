"""The histogram of exponents, apart from the moments: see `pullback.tracking._exponents._cpu`."""
