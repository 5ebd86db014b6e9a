"""`python -m dray` is `dray`."""

import sys

from dray.cli import main

if __name__ == "__main__":
    sys.exit(main())
