"""A million mutated headers through the decoder: our error or a header, and no memory growth.

    python tests/fuzz/million.py --count 1000000 --seed 1

Resident memory is read after a tenth of the run, when caches are warm, and at its end.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from pathlib import Path

from luxrelay.bus import Code, MsgHeader
from luxrelay.errors import HeaderError
from luxrelay.testing import breakages, message_line, shaped_header

GROWTH_MAX_KIB = 8 * 1024
"""Most that resident memory may grow over the last nine tenths of the run, KiB."""
DECISIVE = (0, 1, 70, 73, 106, 107, 108, 141, 142, 207, 208, 209)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return the header with a few bytes changed, cut or appended."""
    raw = bytearray(data)
    for _ in range(rng.randrange(4)):
        place = rng.choice(DECISIVE) if rng.random() < 0.4 else rng.randrange(len(raw) or 1)
        if place < len(raw):
            raw[place] = rng.randrange(256) if rng.random() < 0.7 else rng.choice((0, 1, 4, 255))
    chance = rng.random()
    if chance < 0.15:
        return bytes(raw[: rng.randrange(len(raw) + 1)])
    return bytes(raw) + rng.randbytes(rng.randrange(1, 50)) if chance < 0.25 else bytes(raw)


def resident_kib() -> int:
    """Return the process's resident memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def run(count: int, seed: int) -> Counter[int]:
    """Decode ``count`` mutations and return how often each code came; asserts the promises."""
    rng = random.Random(seed)
    seeds = [message.header.encode() for message in message_line(4)]
    seeds += [shaped_header(scheme, sidecar=True).encode() for scheme in (1, 2, 3, 4, 5)]
    seeds += [breakage.data for breakage in breakages()]
    codes: Counter[int] = Counter()
    warm = 0
    for number in range(count):
        if number == count // 10:
            warm = resident_kib()
        data = mutate(rng.choice(seeds), rng)
        try:
            header = MsgHeader.decode(data)
        except HeaderError as error:
            codes[error.verdict_code] += 1
        else:
            codes[0] += 1
            assert header.encode() == data
    growth = resident_kib() - warm
    assert growth < GROWTH_MAX_KIB, f"memory grew by {growth} KiB"
    return codes


def main() -> None:
    """Run and print how often each code came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = time.perf_counter()
    codes = run(arguments.count, arguments.seed)
    rate = arguments.count / (time.perf_counter() - began)
    for code, times in sorted(codes.items()):
        print(f"{code:5} {Code(code).name:24} {times:9,}")
    print(f"{arguments.count:,} headers, seed {arguments.seed}, {rate:,.0f} a second")


if __name__ == "__main__":
    main()
