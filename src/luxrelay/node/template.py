"""A commented configuration file: every key with its sentence, unit and default.

What is a comment in it is what holds anyway, so that the file shows everything and fixes only what
somebody chose. Each line can be made to count by taking its # away.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any, Final

from luxrelay.node.settings import KEYS, PROFILES

_WIDTH: Final = 96


def commented_file(profile: str, topics: Sequence[str] = ()) -> str:
    """Return the text of a file for a profile that carries these content topics."""
    lines = [
        "# A node of LuxRelay. A line that begins with #: is a key at the value it has anyway;",
        "# take the #: away to change it. `luxrelay node check` says what does not fit, and where.",
    ]
    section = ""
    for key in KEYS:
        if key.section == "namespace":
            continue
        if key.section != section:
            section = key.section
            lines += ["", f"[{section}]"]
        default = PROFILES[profile].get((key.section, key.name), key.default)
        unit = f" Unit: {key.unit}." if key.unit else ""
        lines += [f"# {line}" for line in textwrap.wrap(key.sentence + unit, _WIDTH)]
        if (key.section, key.name) == ("node", "data_dir"):
            lines.append('data_dir = "data"')
        elif (key.section, key.name) == ("node", "profile"):
            lines.append(f"profile = {toml_value(profile)}")
        else:
            lines.append(f"#: {key.name} = {toml_value(default)}")
    for topic in topics:
        lines += ["", "[[namespace]]", f"content_topic = {toml_value(topic)}"]
    if not topics:
        lines += [
            "",
            "# A namespace that this node carries; as many tables as there are namespaces.",
            "#: [[namespace]]",
            '#: content_topic = "/chat/1/room"',
        ]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Return a value as TOML; of text, lists, whole numbers and truth values."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(entry) for entry in value) + "]"
    if isinstance(value, str):
        return json.dumps(value)  # TOML's basic strings take JSON's escapes
    return str(value)
