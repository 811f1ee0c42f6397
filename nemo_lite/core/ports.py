"""Re-exports for collections; the code is in ``core/graph/ports.py``."""

from nemo_lite.core.graph.ports import Ports as Ports
from nemo_lite.core.graph.ports import refuse_unconnected as refuse_unconnected
