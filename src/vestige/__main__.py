"""`python -m vestige`."""

import sys

from vestige.cli import main

sys.exit(main())
