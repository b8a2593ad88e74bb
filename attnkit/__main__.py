"""`python -m attnkit` is the command line."""

import sys

from attnkit.cli import main

sys.exit(main())
