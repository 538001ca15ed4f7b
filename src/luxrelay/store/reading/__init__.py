"""Reading: queries, indexes, the newest slots."""
