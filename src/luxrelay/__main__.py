"""`python -m luxrelay` is the command."""

import sys

from luxrelay.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
