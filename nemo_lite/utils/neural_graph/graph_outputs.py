"""Re-exports under NeMo's module name; the code is in ``core/neural_graph/graph_outputs.py``."""

from nemo_lite.core.neural_graph.graph_outputs import GraphOutput as GraphOutput
from nemo_lite.core.neural_graph.graph_outputs import GraphOutputs as GraphOutputs
