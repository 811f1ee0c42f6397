"""NeuralGraph: NeMo's recorded graphs, over wires and DAGs. Re-exports, nothing else."""

from nemo_lite.core.neural_graph.graph_inputs import GraphInput as GraphInput
from nemo_lite.core.neural_graph.graph_inputs import GraphInputs as GraphInputs
from nemo_lite.core.neural_graph.graph_outputs import GraphOutput as GraphOutput
from nemo_lite.core.neural_graph.graph_outputs import GraphOutputs as GraphOutputs
from nemo_lite.core.neural_graph.neural_graph import NeuralGraph as NeuralGraph
from nemo_lite.core.neural_graph.runner import GraphRunner as GraphRunner
from nemo_lite.core.neural_types.nm_tensor import Connection as Connection
from nemo_lite.core.neural_types.nm_tensor import StepModulePort as StepModulePort
