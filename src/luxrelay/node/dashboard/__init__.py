"""The page that a node shows to its operator."""
