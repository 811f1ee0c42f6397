"""Re-exports for collections; the code is in ``core/graph/shapes.py``."""

from nemo_lite.core.graph.shapes import Expr as Expr
from nemo_lite.core.graph.shapes import Shape as Shape
from nemo_lite.core.graph.shapes import Size as Size
from nemo_lite.core.graph.shapes import ceil_div as ceil_div
from nemo_lite.core.graph.shapes import floor_div as floor_div
from nemo_lite.core.graph.shapes import frames_of as frames_of
from nemo_lite.core.graph.shapes import named as named
from nemo_lite.core.graph.shapes import shape_of as shape_of
from nemo_lite.core.graph.shapes import symbol as symbol
