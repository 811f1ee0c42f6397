"""A script for NeMo 0.x: trains, opens its checkpoints by their names, and saves modules under the usual suffixes."""

import argparse
import glob
import os

import nemo
import torch
from nemo.backends.pytorch.tutorials import MSELoss, RealFunctionDataLayer, TaylorNet
from nemo.core import CheckpointCallback, NeuralModuleFactory
from nemo.utils.helpers import get_checkpoint_from_dir

parser = argparse.ArgumentParser()
parser.add_argument("--work_dir", required=True)
args = parser.parse_args()
ours, nemos = os.path.join(args.work_dir, "ours"), os.path.join(args.work_dir, "nemos")

neural_factory = NeuralModuleFactory(placement=nemo.core.DeviceType.CPU, random_seed=1)
data = RealFunctionDataLayer(n=64, batch_size=16)
net = TaylorNet(dim=4)
criterion = MSELoss()
x, y = data()
loss = criterion(predictions=net(x=x), target=y)
savers = [
    CheckpointCallback(folder=ours, step_freq=4),
    CheckpointCallback(folder=nemos, step_freq=4, format="pt"),
]
neural_factory.train([loss], callbacks=savers, optimization_params={"max_steps": 8, "lr": 0.01}, optimizer="sgd")


def difference(first, second):
    pairs = zip(first.get_weights().values(), second.get_weights().values(), strict=False)
    return max(float((left - right).detach().abs().max()) for (left, _), (right, _) in pairs)


# Files of the callback, by the names that NeMo gives them.
again = TaylorNet(dim=4)
again.restore_from(os.path.join(ours, "TaylorNet-STEP-8.pt"))
assert difference(net, again) == 0
state = nemo.backends.load(os.path.join(ours, "TaylorNet-STEP-8.pt"))
assert torch.equal(state["fc1.weight"], net.state_dict()["fc1.weight"])
state = torch.load(os.path.join(nemos, "TaylorNet-STEP-8.pt"), map_location="cpu")
assert torch.equal(state["fc1.weight"], net.state_dict()["fc1.weight"])
assert len(glob.glob(os.path.join(nemos, "*.pt"))) == 4
trainer = torch.load(os.path.join(nemos, "trainer-STEP-8.pt"))
assert trainer["step"] == 8
assert len(trainer["optimizer_state"]) == 1
for folder in (ours, nemos):
    files, steps = get_checkpoint_from_dir([str(net)], folder, return_steps=True)
    again = TaylorNet(dim=4)
    again.restore_from(files[0])
    assert steps == [8]
    assert difference(net, again) == 0
for wrong in ([["Other"], ours], [[str(net)], os.path.join(ours, "nowhere")]):
    try:
        get_checkpoint_from_dir(*wrong)
        raise AssertionError("there is nothing to find")
    except ValueError as error:
        print(error)

# Single files: what save_to writes, restore_from reads, whatever the suffix.
for name in ("net.pt", "net.pth", "net.ckpt", "net"):
    path = os.path.join(args.work_dir, name)
    net.save_to(path)
    again = TaylorNet(dim=4)
    again.restore_from(path)
    assert difference(net, again) == 0

# A file of 16-bit weights, and the next run, which starts from the folder with torch's files.
torch.save({name: value.half() for name, value in net.state_dict().items()}, os.path.join(args.work_dir, "half.pt"))
again.restore_from(os.path.join(args.work_dir, "half.pt"))
assert 0 < difference(net, again) < 0.01
neural_factory.reset_trainer()
loss = criterion(predictions=again(x=x), target=y)
neural_factory.train(
    [loss],
    callbacks=[CheckpointCallback(folder=args.work_dir, load_from_folder=nemos)],
    optimization_params={"max_steps": 9, "lr": 0.01},
    optimizer="sgd",
    lr_policy=lambda initial_lr, step, epoch: 1e-12,
)
print(f"done {difference(net, again):.6f}")
