"""Counters of catching up, each with the sentence of its metric."""

from __future__ import annotations

from typing import Final

CATCH_UP: Final = {
    "runs": "Catch-ups that ran to their end.",
    "received": "Messages that catch-ups received.",
    "stored": "Of those, new to the store.",
    "rejected": "Of those, invalid.",
    "failures": "Catch-up calls that failed: a relay was away, busy or too slow.",
    "cut": "Catch-up pages that ended before their end; what had come of them was kept.",
    "blobs": "Blobs that arrived for headers stored without them.",
    "withheld": "Messages that a relay claimed to hold and did not deliver.",
    "early": "Messages that relays sent before their time, by this node's clock (G36).",
    "reconciliations": "Comparisons of the whole window with a relay.",
    "reconcile_rounds": "Questions asked in reconciliations.",
    "reconcile_bytes": "Bytes of reconciliations, fetches apart.",
    "reconcile_stored": "Messages that reconciliations found and brought.",
}
"""`luxrelay.node.catch_up.CatchUpTotals`, as ``luxrelay_catch_up_…``."""
BLOBS: Final = {
    "in_flight": "Questions for a blob whose answer has not come yet.",
    "local": "Wanted blobs that the own store had by then.",
    "shared": "Callers who joined a fetch of the same blob that was under way.",
    "absent": "Callers answered from the memory of blobs that nobody had a moment ago.",
    "refused": "Callers turned away: too many blobs wanted at once, or nobody to ask.",
    "asked": "Questions for a blob sent to relays.",
    "delivered": "Blobs that came and matched length and commitment.",
    "given_up": "Blobs that nobody had.",
    "blamed": "Answers that did not match length or commitment.",
    "bytes": "Bytes of blobs that came.",
    "useful_bytes": "Of those, bytes of blobs that were delivered; the others came in vain.",
    "resumed": "Requests for a blob that went on at the byte where another had ended.",
    "put_off": "Requests for a blob that a peer put off, because it sent it to another.",
    "hedged": "Requests for a blob beside another that had not brought a byte.",
    "silent": "Requests for a blob that ended because no byte came for too long.",
}
"""`luxrelay.sync.rpc.blob_driver.FetchStats`, as ``luxrelay_blob_fetch_…``."""
STREAMS: Final = {
    "streams": "Reconcile streams of peers that were answered.",
    "refused": "Reconcile streams that found every place taken.",
    "yielded": "Reconcile streams that made room for another when all places were taken.",
    "questions": "Questions on reconcile streams.",
    "cut": "Reconcile streams ended by a bound, a time, or bytes that are no frames.",
}
"""`luxrelay.net.reconcile.ReconcileStreamCounters`, as ``luxrelay_reconcile_stream_…``."""
