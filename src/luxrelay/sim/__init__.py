"""A network in one process, and the workloads that demo, benchmarks and simulations share."""

from luxrelay.sim.report import SimReport
from luxrelay.sim.run import simulate
from luxrelay.sim.scenario import Scenario, load_scenario, shipped
from luxrelay.sim.workload import ChatMessage, generate_chat, read_chat

__all__ = [
    "ChatMessage",
    "Scenario",
    "SimReport",
    "generate_chat",
    "load_scenario",
    "read_chat",
    "shipped",
    "simulate",
]
