"""Re-exports under NeMo's module name; the code is in ``core/neural_graph/graph_inputs.py``."""

from nemo_lite.core.neural_graph.graph_inputs import GraphInput as GraphInput
from nemo_lite.core.neural_graph.graph_inputs import GraphInputs as GraphInputs
