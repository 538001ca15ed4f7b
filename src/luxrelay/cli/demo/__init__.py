"""demo: the main job of LuxRelay on one machine, from a signer to the archive."""

from luxrelay.cli.demo.command import register

__all__ = ["register"]
