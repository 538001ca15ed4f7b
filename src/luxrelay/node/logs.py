"""Log lines: for people on a terminal, JSON elsewhere; on standard error.

Values go into fields, never into the text, so that a line can be found by its text. Keys whose
names say secret are never written. A line names the module that wrote it, and a module or a room
may have a level of its own.

Peers choose parts of many values (agents, reasons, topics), so every text is cleaned here, in one
place: a line stays one line, is valid UTF-8 and cannot steer a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from luxrelay.text import clean, cleaned

LOGGER: Final = "luxrelay"
FIELD_MAX: Final = 8_000
"""Characters of one field; a traceback is the longest."""
_SECRET: Final = ("secret", "seed", "passphrase", "token", "private")


class FieldFormatter(logging.Formatter):
    """Writes a record and its fields, as JSON or for people."""

    def __init__(self, node: str, *, as_json: bool) -> None:
        """Put the node's name on every line."""
        super().__init__()
        self._node = node
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            name: value
            for name, value in getattr(record, "fields", {}).items()
            if not any(word in name for word in _SECRET)
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        text = clean(record.getMessage())
        if self._as_json:
            line = {
                "time": stamp,
                "level": record.levelname.lower(),
                "node": self._node,
                "module": record.name.removeprefix(f"{LOGGER}."),
            }
            said = cleaned({**line, "event": text, **fields}, FIELD_MAX)
            return json.dumps(said, ensure_ascii=False)
        shown = " ".join(f"{name}={clean(value, FIELD_MAX)}" for name, value in fields.items())
        return f"{stamp[11:23]} {record.levelname[0]} {self._node}: {text}  {shown}".rstrip()


def start_logging(
    node: str,
    level: str,
    stream: TextIO | None = None,
    *,
    levels: Mapping[str, str] | None = None,
) -> None:
    """Send our log lines to ``stream`` (standard error by default); libraries warn only.

    Args:
        node: The node's name, which stands on every line.
        level: Least severe line that is written.
        stream: Where lines go.
        levels: Levels of rooms and modules by name, such as ``net`` or ``node.catch_up``.

    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(FieldFormatter(node, as_json=not target.isatty()))
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.propagate = False
    # What a library says goes the same way, so that the log is JSON line by line.
    logging.lastResort = handler
    set_levels(level, levels or {})


def set_levels(level: str, levels: Mapping[str, str]) -> None:
    """Change what is written from now on; modules that are not named follow ``level``."""
    logging.getLogger(LOGGER).setLevel(level.upper())
    for name, known in list(logging.root.manager.loggerDict.items()):
        if name.startswith(f"{LOGGER}.") and isinstance(known, logging.Logger):
            known.setLevel(logging.NOTSET)
    for name, own in levels.items():
        logging.getLogger(f"{LOGGER}.{name}").setLevel(own.upper())


def log(level: int, event: str, **fields: object) -> None:
    """Write one line of the calling module: a fixed text and its fields."""
    name = sys._getframe(1).f_globals.get("__name__", LOGGER)  # noqa: SLF001  as logging itself does
    if not name.startswith(LOGGER):
        name = LOGGER
    logging.getLogger(name).log(level, event, extra={"fields": fields})
