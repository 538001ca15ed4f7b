"""HTTP, WebSocket and admin listeners of a node."""
