"""How tests start Python in a process of its own."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
# This code, installed or not.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
