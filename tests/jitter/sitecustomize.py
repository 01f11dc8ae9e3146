"""Python imports this file when it starts, if its folder is on PYTHONPATH: so do the commands that tests start."""

import jitter

jitter.from_environment()
