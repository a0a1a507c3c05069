"""Programs over the states of a motion, solved by Riccati recursions."""
