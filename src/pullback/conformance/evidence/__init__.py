"""What speaks for and against a derivative, and how much of it an accusation needs."""
