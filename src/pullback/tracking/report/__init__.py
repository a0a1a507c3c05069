"""What a recorded run looks like: diagnosis, table, page and picture."""
