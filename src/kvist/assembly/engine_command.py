"""How an engine process is run. Apart from the rest of the package, so that naming the command imports no engine."""

from __future__ import annotations

import sys

ENGINE_COMMAND = (sys.executable, "-P", "-m", "kvist.assembly.engine_child")
