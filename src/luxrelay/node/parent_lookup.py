"""Which of a node's namespaces a header belongs to, when its topic does not say.

On ``headers/global`` a header comes without its parent. It belongs to a namespace that the node
carries, or is in a lane of one, which its key proves (J6); anything else is of no namespace here.

Source: LP-6420 §2.2; decisions J6, G28.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from luxrelay.bus import MsgHeader, NamespaceId, lane

REMEMBERED_MAX: Final = 16_384
"""Answers remembered; beyond it the one not needed for longest is forgotten."""


class Carried:
    """Answers from memory where it can; any thread may ask.

    A first question costs a hash for each namespace that the node carries.
    """

    def __init__(
        self, parents: Iterable[NamespaceId], *, remembered_max: int = REMEMBERED_MAX
    ) -> None:
        """Take the namespaces that the node carries."""
        self._parents = frozenset(parents)
        self._max = remembered_max
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[NamespaceId, bytes], NamespaceId | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def parent_of(self, header: MsgHeader) -> NamespaceId | None:
        """Return the carried namespace of a header, or None when it has none."""
        namespace = header.namespace_id
        if namespace in self._parents:
            return namespace
        question = (namespace, header.sender_pub_key)
        with self._lock:
            if question in self._found:
                self._found.move_to_end(question)
                return self._found[question]
        key = header.sender_pub_key
        answer = next((each for each in self._parents if lane(each, key) == namespace), None)
        with self._lock:
            self._found[question] = answer
            if len(self._found) > self._max:
                self._found.popitem(last=False)
        return answer
