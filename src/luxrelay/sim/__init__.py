"""A network in one process, and the workloads that demo, benchmarks and simulations share."""

from luxrelay.sim.workload import ChatMessage, generate_chat, read_chat

__all__ = ["ChatMessage", "generate_chat", "read_chat"]
