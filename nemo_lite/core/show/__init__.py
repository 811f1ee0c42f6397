"""Shows a DAG: as a text table, as Mermaid, as SVG. Re-exports, nothing else."""

from nemo_lite.core.graph.shapes import frames_of as frames_of
from nemo_lite.core.graph.shapes import symbolic_shapes as symbolic_shapes
from nemo_lite.core.show.mermaid import as_mermaid as as_mermaid
from nemo_lite.core.show.plan import show_plan as show_plan
from nemo_lite.core.show.precision import NodePrecision as NodePrecision
from nemo_lite.core.show.precision import PrecisionReport as PrecisionReport
from nemo_lite.core.show.precision import show_precision as show_precision
from nemo_lite.core.show.svg import as_svg as as_svg
from nemo_lite.core.show.svg import write_svg as write_svg
from nemo_lite.core.show.text import as_text as as_text
