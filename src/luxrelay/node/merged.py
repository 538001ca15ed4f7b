"""A page of a search that stands in two places: what the store and the archive give, in one order.

A store forgets each namespace by its own rules, so a search has no time before which the archive
answers and after which the store does. Both are asked for the same page; where one of them ends
early, nothing behind its end is told, for the other may have more before it. So each message comes
once, in order, and the cursor serves for both.

Source: P18, P38; LP-6440.
"""

from __future__ import annotations

from luxrelay.store import IndexPage, SenderQuery, StoredMessage, TimeQuery


def seq_place(message: StoredMessage) -> bytes:
    """Return the cursor of a message in its namespace: stores and archives order by it."""
    return message.seq.to_bytes(8, "big") + message.header.content_id


def place_of(query: TimeQuery | SenderQuery, message: StoredMessage) -> bytes:
    """Return the cursor of a message in a search."""
    place = message.namespace_id + seq_place(message)
    if isinstance(query, SenderQuery):
        return place
    return message.header.timestamp.to_bytes(8, "big") + place


def merged(query: TimeQuery | SenderQuery, stored: IndexPage, archived: IndexPage) -> IndexPage:
    """Return the page that one store of both would give.

    Args:
        query: What both were asked; with its own ``limit`` and ``max_bytes``.
        stored: The store's page; of a message that both have, its row is taken.
        archived: The archive's page.

    """
    rows = {place_of(query, each): each for each in archived.messages}
    rows |= {place_of(query, each): each for each in stored.messages}
    ends = [page.next_cursor for page in (stored, archived) if page.has_more]
    end = min(ends, default=b"")
    messages: list[StoredMessage] = []
    size, last = 0, query.cursor
    for place in sorted(rows):
        if end and place > end:
            break
        message = rows[place]
        size += len(message.header_bytes) + len(message.blob or b"")
        full = len(messages) >= query.limit > 0 or size > query.max_bytes > 0
        if messages and full:
            return IndexPage(messages=messages, has_more=True, next_cursor=last)
        messages.append(message)
        last = place
    return IndexPage(messages=messages, has_more=bool(end), next_cursor=end)
