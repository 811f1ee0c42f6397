"""What is alive, by name: weak registries of modules, graphs and wires, and NeMo's ``AppState`` over them."""

from nemo_lite.utils.alive.app_state import AppState as AppState
from nemo_lite.utils.alive.app_state import Singleton as Singleton
from nemo_lite.utils.alive.connection import Connection as Connection
from nemo_lite.utils.alive.connection import StepModulePort as StepModulePort
from nemo_lite.utils.alive.registries import NeuralGraphManager as NeuralGraphManager
from nemo_lite.utils.alive.registries import NmTensorNameRegistry as NmTensorNameRegistry
from nemo_lite.utils.alive.registries import ObjectRegistry as ObjectRegistry
