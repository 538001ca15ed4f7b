"""For tests, ours and users': messages, ways to break them, and the conformance vectors."""

from luxrelay.testing.messages import (
    Breakage,
    SampleMessage,
    breakages,
    message_line,
    shaped_header,
    signing_key,
)

__all__ = [
    "Breakage",
    "SampleMessage",
    "breakages",
    "message_line",
    "shaped_header",
    "signing_key",
]
