"""Re-exports under NeMo's module name; the code is in ``utils/alive/connection.py``."""

from nemo_lite.utils.alive.connection import Connection as Connection
from nemo_lite.utils.alive.connection import StepModulePort as StepModulePort
