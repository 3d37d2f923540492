"""``python -m dpilot``: the command line, where no ``dpilot`` is on the path."""

import sys

from dpilot.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
