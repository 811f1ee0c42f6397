"""Trained modules as files for other programs. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.export.deployment import DeploymentExport as DeploymentExport
from nemo_lite.backends.pytorch.export.onnx_files import Argument as Argument
from nemo_lite.backends.pytorch.export.onnx_files import OnnxRun as OnnxRun
from nemo_lite.backends.pytorch.export.onnx_files import dynamic_axes as dynamic_axes
from nemo_lite.backends.pytorch.export.onnx_files import write_onnx as write_onnx
from nemo_lite.backends.pytorch.export.wires import export_wires as export_wires
