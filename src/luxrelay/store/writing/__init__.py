"""Writing: batches, their rows, what makes room."""
