"""`python -m globalstep`: the command line, as `globalstep` where that is not on the PATH."""

import sys

from globalstep.deploy.cli import main

if __name__ == "__main__":
    sys.exit(main())
