"""finality sign: what consensus has decided, as a signed statement for the file that nodes read."""

from __future__ import annotations

import argparse
import time
from typing import Final

from luxrelay.bus import NamespaceId
from luxrelay.bus.constants import HASH_BYTES, MAX_U64, NAMESPACE_BYTES
from luxrelay.bus.finality import FinalityRow, FinalityState, FinalityStatement
from luxrelay.cli.arguments import SubParsers, add_command, hex_bytes, whole_number
from luxrelay.cli.output import print_json
from luxrelay.cli.passphrase import add_passphrase_file, open_key
from luxrelay.errors import UsageError

_STATES: Final = {state.name.lower(): state for state in FinalityState if state.value}


def register(commands: SubParsers) -> None:
    """Add the command."""
    finality = commands.add_parser("finality", help="sign statements of what consensus has decided")
    actions = finality.add_subparsers(dest="action", metavar="ACTION", required=True)
    sign = add_command(
        actions,
        "sign",
        "print a signed statement in hex; append it to the file that [finality] names",
        "luxrelay finality sign --key validator.pem --network devnet --number 1 "
        "NAMESPACE:SEQ:HEADERHASH >> statements.hex",
        _sign,
    )
    sign.add_argument("--key", required=True, metavar="FILE", help="the signer's key file")
    add_passphrase_file(sign)
    sign.add_argument("--network", required=True, metavar="NAME", help="the network it speaks of")
    sign.add_argument(
        "--number",
        required=True,
        type=whole_number(1, MAX_U64),
        metavar="N",
        help="rises from one statement of the signer to the next",
    )
    sign.add_argument("--json", action="store_true", help="print JSON, with the hex in it")
    sign.add_argument(
        "rows",
        nargs="+",
        metavar="ROW",
        help="NAMESPACE:SEQ:HEADERHASH, and :STATE when it is not finalized: " + ", ".join(_STATES),
    )


def _sign(arguments: argparse.Namespace) -> int:
    rows = tuple(sorted(map(_row, arguments.rows), key=FinalityRow.encode))
    statement = FinalityStatement(
        network=arguments.network,
        number=arguments.number,
        issued_ms=time.time_ns() // 1_000_000,
        rows=rows,
    ).signed_by(open_key(arguments.key, arguments.passphrase_file))
    text = statement.encode().hex()
    if not arguments.json:
        print(text)
        return 0
    print_json(
        {
            "statement": "0x" + text,
            "signer": "0x" + statement.signer.hex(),
            "network": statement.network,
            "number": statement.number,
            "issuedMs": statement.issued_ms,
            "rows": [
                {
                    "namespaceId": "0x" + row.namespace_id.hex(),
                    "seq": row.seq,
                    "headerHash": "0x" + row.header_hash.hex(),
                    "state": row.state.name.lower(),
                }
                for row in rows
            ],
        }
    )
    return 0


def _row(text: str) -> FinalityRow:
    parts = text.split(":")
    if len(parts) not in (3, 4):
        raise UsageError("not NAMESPACE:SEQ:HEADERHASH or with :STATE", where=text[:200])
    state = _STATES.get(parts[3] if len(parts) == 4 else "finalized")
    if state is None:
        raise UsageError(f"a state is one of {', '.join(_STATES)}", where=text[:200])
    try:
        seq = whole_number(1, MAX_U64)(parts[1])
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error), where=text[:200]) from error
    return FinalityRow(
        NamespaceId(hex_bytes(parts[0], NAMESPACE_BYTES, text[:200])),
        seq,
        hex_bytes(parts[2], HASH_BYTES, text[:200]),
        state,
    )
