"""A re-export for collections; the code is in ``core/graph/ports.py``."""

from nemo_lite.core.graph.ports import Ports as Ports
