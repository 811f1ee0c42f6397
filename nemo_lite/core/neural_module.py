"""Re-exports for collections; the code is in ``core/graph/neural_module.py``."""

from nemo_lite.core.graph.neural_module import NeuralModule as NeuralModule
from nemo_lite.core.graph.neural_module import classes_by_name as classes_by_name
from nemo_lite.core.graph.neural_module import subclasses as subclasses
from nemo_lite.core.graph.neural_module import unique_names as unique_names
