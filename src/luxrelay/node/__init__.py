"""One process from the parts: configuration, stages, metrics, lifecycle."""

from luxrelay.node.config import NodeConfig, load_config, parse_config
from luxrelay.node.keyfile import create_key_file, read_key_file

__all__ = ["NodeConfig", "create_key_file", "load_config", "parse_config", "read_key_file"]
