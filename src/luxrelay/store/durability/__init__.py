"""Durability: the folder and its lock, syncs, marks of what was safe."""
