"""One application of a Function: its definition, its context, and what it keeps."""
