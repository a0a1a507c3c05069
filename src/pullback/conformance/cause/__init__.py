"""Why a clause fails: the edit of a rule that makes it right, and what fails for the same cause."""
