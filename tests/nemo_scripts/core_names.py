"""What a user of NeMo 0.8 to 0.11 reaches into beside training: names, wires, types, state, configuration, files."""

import argparse
import os

import nemo
import nemo.collections.asr as nemo_asr
from nemo.backends.pytorch import MSELoss, RealFunctionDataLayer, TaylorNet
from nemo.backends.pytorch.nm import LossNM, NonTrainableNM, TrainableNM
from nemo.backends.pytorch.tutorials.toys import CrossEntropyLoss, L1Loss
from nemo.core import DeviceType, NeuralModuleFactory, OperationMode, SimpleLogger
from nemo.core.module_decorators import run_only_on_device, skip_in_data_parallel
from nemo.core.neural_factory import Optimization
from nemo.core.neural_interface import NeuralInterface
from nemo.core.neural_modules import ModuleType, NeuralModule, PretrainedModelInfo, WeightShareTransform
from nemo.core.neural_types import *
from nemo.utils import logging, logging_mode, rgetattr
from nemo.utils.app_state import AppState
from nemo.utils.configuration_error import ConfigurationError
from nemo.utils.decorators import add_port_docs, deprecated
from nemo.utils.metaclasses import Singleton
from nemo.utils.misc import Config, pad_to
from nemo.utils.neural_graph.connection import Connection, StepModulePort
from nemo.utils.neural_graph.graph_inputs import GraphInput
from nemo.utils.neural_graph.graph_outputs import GraphOutputs
from nemo.utils.neural_graph.object_registry import ObjectRegistry

parser = argparse.ArgumentParser()
parser.add_argument("--work_dir", required=True)
args = parser.parse_args()
factory = NeuralModuleFactory(
    placement=DeviceType.CPU, optimization_level=Optimization.mxprO0, log_dir=args.work_dir, master_process=True
)
logging.info("version %s", nemo.__version__, mode=logging_mode.ONCE)
checkpoints = factory.checkpoint_dir + "/"
assert os.path.isdir(factory.work_dir + "/checkpoints")
assert str(factory._exp_manager.work_dir) == factory.work_dir

# Modules: names, kinds, parameters.
data = RealFunctionDataLayer(n=64, batch_size=16)
net = TaylorNet(dim=4)
loss_module = MSELoss()
assert net.name == "taylornet0"
assert TaylorNet(dim=1).name in ("taylornet1", "taylornet2")
assert (data.type, net.type, loss_module.type) == (ModuleType.datalayer, ModuleType.trainable, ModuleType.loss)
assert net.placement is DeviceType.CPU
assert net.factory is factory
assert isinstance(net, NeuralInterface)
assert net.local_parameters["dim"] == 4
assert loss_module.get_weights() is None
assert data.batch_size == 16
try:
    TaylorNet(dim=4, name="taylornet0")
    raise AssertionError("the name is in use")
except NameError as error:
    print(error)
net.operation_mode = OperationMode.evaluation
assert not net.training
net.operation_mode = OperationMode.both
assert net.training

# Wires: they are types, and know steps, producers and consumers.
x, y = data()
y_pred = net(x=x)
loss = loss_module(predictions=y_pred, target=y)
assert x.producer_step_module_port == StepModulePort(0, data.name, "x")
assert x.consumers == [StepModulePort(1, "taylornet0", "x")]
assert y_pred.connections()[0].consumer.module_name == loss_module.name
assert x.compare(net.input_ports["x"]) == NeuralTypeComparisonResult.SAME
assert str(net.input_ports["x"]) == "axes: (batch, dimension); elements_type: ChannelType"
assert AppState().modules["taylornet0"] is net
y_pred.rename("prediction")
assert AppState().tensor_names["prediction"] == y_pred.unique_name
try:
    y.rename("loss")
    raise AssertionError("it is always taken")
except KeyError as error:
    print(error)
for wrong, kind in (({"y": x}, NeuralPortNameMismatchError), ({"y_pred": x}, ValueError)):
    try:
        net(**wrong)
        raise SystemExit("it was accepted")
    except kind as error:
        print(type(error).__name__)

# Training: one line a tensor, by whichever limit comes first.
factory.train(
    [loss],
    callbacks=[SimpleLogger(step_freq=4, tensors_to_log=["loss"])],
    optimization_params={"num_epochs": 2, "max_steps": 6, "lr": 0.003},
    optimizer="sgd",
)
assert factory.get_trainer().step in (5, 6)

# Files of modules and of tensors.
config = os.path.join(args.work_dir, "net.yaml")
net.export_to_config(config)
again = NeuralModule.import_from_config(config, name="again")
assert (type(again), again.name) == (TaylorNet, "again")
try:
    L1Loss.import_from_config(config)
    raise AssertionError("a TaylorNet is no L1Loss")
except ImportError as error:
    print(error)
path = os.path.join(args.work_dir, "weights")
nemo.backends.save({"net": nemo.backends.get_state_dict(net), "step": 6}, path)
found = nemo.backends.load(path)
nemo.backends.set_state_dict(again, found["net"])
assert found["step"] == 6


class Shifted(TrainableNM):
    """A module whose argument YAML cannot hold."""

    def __init__(self, mode=OperationMode.both):
        super().__init__()
        self.mode = mode

    @property
    @add_port_docs()
    def input_ports(self):
        """The input."""
        return {"x": NeuralType(("B", "D"), ChannelType())}

    @property
    @add_port_docs
    def output_ports(self):
        """The output."""
        return {"y": NeuralType(("B", "D"), ChannelType())}

    def _serialize_configuration(self):
        return {"mode": self.mode.name}

    @classmethod
    def _deserialize_configuration(cls, init_params):
        return {"mode": OperationMode[init_params["mode"]]}

    def forward(self, x):
        return x + 1


module = NeuralModule.deserialize(Shifted(OperationMode.training).serialize())
assert module.mode is OperationMode.training


# The first generation: tags, ports made by the class, keywords that are handed on.
class OldStyle(NonTrainableNM):
    @staticmethod
    def create_ports():
        return (
            {"signal": NeuralType({0: AxisType(BatchTag), 1: AxisType(SpectrogramSignalTag), 2: AxisType(TimeTag)})},
            {"out": NeuralType({0: AxisType(BatchTag), 1: AxisType(ChannelTag), 2: AxisType(ProcessedTimeTag)})},
        )

    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def forward(self, signal):
        return signal


old = OldStyle(factory=factory, placement=DeviceType.CPU)
preprocessor = nemo_asr.AudioPreprocessing(feat_type="logfbank", features=64)
try:
    nemo_asr.AudioPreprocessing(feat_type="cepstrum")
    raise AssertionError("no such features")
except NotImplementedError as error:
    print(error)
assert nemo_asr.helpers.word_error_rate(hypotheses=["a b"], references=["a c"]) == 0.5


# Decorators and small things.
@skip_in_data_parallel
@run_only_on_device(DeviceType.CPU)
class OnCpu(Shifted):
    pass


assert (OnCpu.skip_in_data_parallel, OnCpu.run_only_on_device) == (True, DeviceType.CPU)
for decorate in (deprecated, deprecated(), deprecated(version=0.12, explanation="Use new_way.")):
    assert decorate(lambda value: value + 1)(1) == 2
assert (pad_to(13), Config({"lr": 1})["inference"]) == (16, {})
assert isinstance(Config, type)
assert issubclass(ConfigurationError, Exception)
assert rgetattr(net, "fc1.in_features") == 4
assert ObjectRegistry("thing").summary()
print("done")
