"""I/O: runs the machines of a channel on anyio, keeps their state, speaks to the layer below."""
