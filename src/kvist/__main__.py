"""`python -m kvist`."""

import sys

from kvist.cli.main import main

sys.exit(main())
