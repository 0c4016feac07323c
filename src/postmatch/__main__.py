"""``python -m postmatch``: the command line."""

import sys

from postmatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
