"""`python -m rltriage` is the command `rltriage`."""

import sys

from rltriage.cli import main

sys.exit(main())
