"""Run the network lab: real nodes in network namespaces, over links that are slow, lossy and cut.

It needs root, TUN devices and iproute2, and fails with the reason where it has not got them. Usage:

    python bench/lab.py [--short] [--able] [--list] [--publish] [--out FOLDER] [SCENARIO ...]
"""

from __future__ import annotations

import sys

from netlab.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
