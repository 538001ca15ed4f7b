"""A network of real nodes in network namespaces, with links that are slow, lossy and cut."""
