"""A script of the first NeMo: the trainer has the optimizer, and prints wires that are only evaluated."""

import nemo
from nemo.backends.pytorch.tutorials import MSELoss, RealFunctionDataLayer, TaylorNet

neural_factory = nemo.core.NeuralModuleFactory(backend=nemo.core.Backend.PyTorch, placement=nemo.core.DeviceType.CPU)
data = neural_factory.get_module(
    name="RealFunctionDataLayer", collection="toys", params={"n": 64, "batch_size": 16, "f_name": "sin"}
)
assert isinstance(data, RealFunctionDataLayer)
x, y = data()
prediction = TaylorNet(dim=4)(x=x)
loss = MSELoss()(predictions=prediction, target=y)

train_callback = nemo.core.SimpleLossLoggerCallback(
    tensor_list2string=lambda values: f"loss {values[0].item():.4f}",
    tensor_list2string_evl=lambda values: f"predictions {tuple(values[0].shape)} targets {tuple(values[1].shape)}",
    step_frequency=4,
)
optimizer = neural_factory.get_trainer(
    params={
        "optimizer_kind": "sgd",
        "optimization_params": {"num_epochs": 2, "lr": 1e-4, "weight_decay": 1e-3, "grad_norm_clip": None},
    }
)
optimizer.train(tensors_to_optimize=[loss], callbacks=[train_callback], tensors_to_evaluate=[prediction, y])
print("done")
