"""A training run on one rank of several, and a callback that counts its steps: functions for ``on_ranks``."""

import nemo_lite as nemo
from toys.nets import Mse


def rank_factory(**kwargs):
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, **kwargs)


def train_net(made, net, data, callbacks=(), max_steps=6, num_epochs=None, **kwargs):
    x, y = data()
    loss = Mse()(out=net(x=x), target=y)
    params = {"lr": 0.1, "momentum": 0.0, "max_steps": None if num_epochs else max_steps, "num_epochs": num_epochs}
    made.train([loss], callbacks=list(callbacks), optimizer="sgd", optimization_params=params, **kwargs)
    return {name: value.tolist() for name, value in net.state_dict().items()}


class Count(nemo.NeMoCallback):
    """Steps made; asks to stop at one of them, on one rank."""

    def __init__(self, stop_at=None, on_rank=0):
        super().__init__()
        self.steps, self.epochs, self._stop_at, self._on_rank = 0, 0, stop_at, on_rank

    def on_step_end(self, state):
        self.steps += 1
        if self._stop_at == state.step and state.global_rank == self._on_rank:
            state.request_stop("it was asked for")

    def on_epoch_end(self, state):
        self.epochs += 1
