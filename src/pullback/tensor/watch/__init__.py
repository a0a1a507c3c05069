"""Rules watched while they run: what each value is computed of, and where that is cut."""
