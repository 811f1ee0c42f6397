"""A script of a NeMo 0.11 user: two data layers as one, two losses as one, labels of each position, and a dry run."""

import torch
from nemo.backends.pytorch.common import DataCombination, MultiDataLayer, SequenceEmbedding, ZerosDataLayer
from nemo.backends.pytorch.common.losses import CrossEntropyLossNM, LossAggregatorNM, SequenceLoss
from nemo.backends.pytorch.nm import DataLayerNM, NonTrainableNM, TrainableNM
from nemo.core import DeviceType, NeuralModuleFactory, NeuralType, SimpleLogger
from nemo.core.neural_types import ChannelType, LabelsType, LogitsType, LogprobsType


class Tokens(DataLayerNM):
    """Texts of six tokens, each with what it is to be turned into."""

    def __init__(self, shift, batch_size=8):
        super().__init__()
        self._batch_size = batch_size
        tokens = torch.randint(1, 6, (32, 6), generator=torch.Generator().manual_seed(shift))
        self._data = torch.utils.data.TensorDataset(tokens, (tokens + shift) % 5 + 1)

    @property
    def output_ports(self):
        return {"tokens": NeuralType(("B", "T"), LabelsType()), "labels": NeuralType(("B", "T"), LabelsType())}

    def __len__(self):
        return len(self._data)

    @property
    def dataset(self):
        return self._data

    @property
    def data_iterator(self):
        return None


class Classify(TrainableNM):
    def __init__(self, width, classes, name=None):
        super().__init__(name=name)
        self.linear = torch.nn.Linear(width, classes)

    @property
    def input_ports(self):
        return {"hidden": NeuralType(("B", "T", "C"), ChannelType())}

    @property
    def output_ports(self):
        return {"logits": NeuralType(("B", "T", "D"), LogitsType())}

    def forward(self, hidden):
        return self.linear(hidden)


class LogSoftmax(NonTrainableNM):
    @property
    def input_ports(self):
        return {"logits": NeuralType(("B", "T", "D"), LogitsType())}

    @property
    def output_ports(self):
        return {"log_probs": NeuralType(("B", "T", "D"), LogprobsType())}

    def forward(self, logits):
        return torch.log_softmax(logits, dim=-1)


factory = NeuralModuleFactory(placement=DeviceType.CPU, random_seed=1)
layers = [Tokens(1), Tokens(2)]
data = MultiDataLayer(layers, batch_size=8, shuffle=True, combination_mode=DataCombination.ZIP)
embedding = SequenceEmbedding(voc_size=8, hidden_size=16)
first, second = Classify(16, 8, name="first"), Classify(16, 8, name="second")
cross_entropy, sequence_loss = CrossEntropyLossNM(logits_ndim=3), SequenceLoss(pad_id=0, smoothing_coef=0.0)
aggregator = LossAggregatorNM(num_inputs=2, weights=[1.0, 0.5])

tokens, labels, tokens_1, labels_1 = data()
loss_1 = cross_entropy(logits=first(hidden=embedding(input_seq=tokens)), labels=labels)
log_probs = LogSoftmax()(logits=second(hidden=embedding(input_seq=tokens_1)))
loss = aggregator(loss_1=loss_1, loss_2=sequence_loss(log_probs=log_probs, targets=labels_1))

before = [float(value[0]) for value in factory.infer(tensors=[loss])]
factory.train(
    tensors_to_optimize=[loss],
    callbacks=[SimpleLogger(step_freq=40)],
    optimizer="adam",
    optimization_params={"num_epochs": 30, "lr": 0.03},
)
after = [float(value[0]) for value in factory.infer(tensors=[loss])]

# The same net on zeros: only the shapes matter.
zeros = ZerosDataLayer(size=4, output_ports={"x": embedding.input_ports["input_seq"]}, dtype=torch.long, batch_size=2)
shapes = [tuple(values.shape) for values in factory.infer(tensors=[first(hidden=embedding(input_seq=zeros()))])[0]]
pairs = len(MultiDataLayer(layers, batch_size=1))
