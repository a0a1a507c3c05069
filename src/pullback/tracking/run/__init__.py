"""What was recorded: identities, histories, totals, and the files that keep them."""
