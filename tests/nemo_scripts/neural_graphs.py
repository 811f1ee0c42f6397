"""A script of a NeMo 0.11 user: a model as a graph, in a training and in a validation graph, with and without factory.

Usage: neural_graphs.py FOLDER
"""

import sys
from os.path import join

import torch
from nemo.backends.pytorch.tutorials import MSELoss, RealFunctionDataLayer, TaylorNet
from nemo.core import (
    DeviceType,
    EvaluatorCallback,
    NeuralGraph,
    NeuralModuleFactory,
    OperationMode,
    SimpleLossLoggerCallback,
)
from nemo.utils import logging

folder = sys.argv[1]
factory = NeuralModuleFactory(placement=DeviceType.CPU, random_seed=3)

train_data = RealFunctionDataLayer(n=400, batch_size=100, x_lo=-1.0, x_hi=1.0, name="train_data")
eval_data = RealFunctionDataLayer(n=100, batch_size=100, x_lo=-1.0, x_hi=1.0, name="eval_data")
net = TaylorNet(dim=4, name="net")
criterion = MSELoss(name="criterion")

with NeuralGraph(operation_mode=OperationMode.both, name="model") as model:
    net(x=model)

with NeuralGraph(operation_mode=OperationMode.training, name="training") as training_graph:
    x, t = train_data()
    p = model(x=x)
    loss = criterion(predictions=p, target=t)
    training_graph.outputs["loss"] = loss

with NeuralGraph(operation_mode=OperationMode.evaluation, name="validation") as validation_graph:
    x_valid, t_valid = eval_data()
    p_valid = model(x=x_valid)
    loss_valid = criterion(predictions=p_valid, target=t_valid)

logging.info(training_graph.summary())

seen: list[float] = []


def collect(values, global_vars):
    found = next(value for name, value in values.items() if name.startswith("loss"))
    global_vars.setdefault("losses", []).append(found[0].item())


def told(global_vars):
    seen.append(sum(global_vars["losses"]) / len(global_vars["losses"]))


factory.train(
    training_graph=training_graph,
    callbacks=[
        SimpleLossLoggerCallback(tensors=[loss], print_func=lambda values: logging.info(f"loss {values[0].item()}")),
        EvaluatorCallback([loss_valid], collect, told, eval_step=50),
    ],
    optimization_params={"num_epochs": 40, "lr": 0.1},
    optimizer="sgd",
)

# The graph as a file, and its weights as another.
training_graph.export_to_config(join(folder, "training.yml"))
training_graph.save_to(join(folder, "training.chkpt"))
again = NeuralGraph.import_from_config(join(folder, "training.yml"), reuse_existing_modules=True, name="training_again")
trained = net.fc1.weight.detach().clone()
torch.nn.init.zeros_(net.fc1.weight)
again.restore_from(join(folder, "training.chkpt"))
restored = torch.equal(net.fc1.weight, trained)

# A loop of one's own, without the factory.
again.to(DeviceType.CPU)
again.configure_data_loader(batch_size=50, shuffle=True)
optimizer = torch.optim.SGD(again.parameters(), lr=0.05)
own_losses = []
for batch in again.get_batch():
    optimizer.zero_grad()
    own_losses.append(again.forward(batch).item())
    again.backward()
    optimizer.step()

# Only the model, on values.
with torch.no_grad():
    predicted = model.forward(x=torch.zeros(1, 1))
model.freeze()
is_frozen = net.is_frozen()
