"""The histogram of exponents, apart from the moments: see ``_cpu.py``."""
