"""LuxRelay: a message bus without a master."""

__version__ = "0.1.0"
