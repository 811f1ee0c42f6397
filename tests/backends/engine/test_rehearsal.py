"""A batch by trial: whether memory lacks. Whole runs are in tests/asr/commands/test_largest_batch.py."""

import torch
from toys.nets import BD, Mse, Points

import nemo_lite as nemo


class Scale(nemo.TrainableNM):
    """A weight for each column; of more than five rows memory lacks."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        if len(x) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return x * self.scale


def test_a_trial_says_that_memory_lacks_and_changes_no_weight():
    net = Scale()
    x, y = Points()()
    loss = Mse()(out=net(x=x), target=y)
    made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    tried = [made.tried_bytes([loss], [torch.ones(n, 8), torch.ones(n, 8)], "adam", {"lr": 0.1}) for n in (5, 6)]
    assert tried == [0, None]
    assert net.scale.grad is None
    assert torch.equal(net.scale, torch.ones(8))
