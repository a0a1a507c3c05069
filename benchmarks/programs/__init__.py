"""Training scripts of users of published packages, under `pullback check --`."""
