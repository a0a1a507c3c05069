"""The process that a check runs in: its limits, its copies, and what its errors mean."""
