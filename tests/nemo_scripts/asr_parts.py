"""A script of NeMo 0.10 that goes below the modules: parts, a perturbation and a data layer of its own."""

import io
import json
import random
import sys

import nemo
import nemo.collections.asr as nemo_asr
import numpy as np
import torch
from nemo.backends.pytorch.nm import DataLayerNM
from nemo.collections.asr.parts import AudioDataset, AudioLabelDataset, collections, parsers, perturb
from nemo.collections.asr.parts.dataset import seq_collate_fn
from nemo.collections.asr.parts.features import WaveformFeaturizer
from nemo.collections.asr.parts.manifest import item_iter
from nemo.collections.asr.parts.segment import AudioSegment
from nemo.core.neural_types import AudioSignal, LengthsType, NeuralType
from torch.utils.data import DataLoader, Dataset

folder = sys.argv[1]
labels = [" ", "a", "b", "c"]
assert issubclass(AudioLabelDataset, Dataset)
with open(f"{folder}/parts.json", "w") as manifest:
    for number in (1, 2, 3):
        manifest.write(json.dumps({"audio_filepath": f"{folder}/{number}.wav", "duration": 60, "text": "ab"}) + "\n")
manifest_path = f"{folder}/parts.json"

# Manifests, texts and recordings by hand
speakers = [item["speaker"] for item in item_iter(manifest_path)]
parser = parsers.make_parser(labels, "en")
utterances = collections.ASRAudioText(manifest_path, parser=parser, max_number=2)
segment = AudioSegment.from_file(utterances[0].audio_file, target_sr=8000, offset=0.1)
segment.gain_db(-6)
segment.subsegment(start_time=0.0, end_time=0.05)


class Louder(perturb.Perturbation):
    """Changes a segment as NeMo's own perturbations do."""

    def __init__(self, gain=6.0, rng=None):
        self._gain, self._rng = gain, rng or random.Random()

    def perturb(self, data):
        data._samples = data._samples * (10.0 ** (self._gain / 20.0))


perturb.register_perturbation("louder", Louder)
plain = WaveformFeaturizer(sample_rate=16000)
loud = WaveformFeaturizer.from_config(
    {"sample_rate": 16000}, [{"aug_type": "louder", "prob": 1.0, "cfg": {"gain": 20.0}}]
)
with open(f"{folder}/1.wav", "rb") as file:
    from_memory = plain.process(io.BytesIO(file.read()))
ratio = (loud.process(f"{folder}/1.wav") / from_memory).median().item()

dataset = AudioDataset(manifest_path, labels, plain, parser="base")
(batch,) = DataLoader(dataset, batch_size=3, collate_fn=seq_collate_fn)

# A network that is fed by hand
nf = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.CPU)
preprocessor = nemo_asr.AudioToMelSpectrogramPreprocessor(features=16)
preprocessor.eval()
preprocessor.featurizer.dither = 0.0
preprocessor.featurizer.pad_to = 0
by_hand = preprocessor.featurizer(batch[0], batch[1])
layer = nemo_asr.AudioToTextDataLayer(
    manifest_path, labels, batch_size=3, shuffle=False, augmentor={"louder": {"prob": 1.0}}
)
(read,) = layer.data_iterator


class SignalLayer(DataLayerNM):
    """One recording at a time, from memory, as speech services have it."""

    @property
    def output_ports(self):
        return {
            "audio_signal": NeuralType(("B", "T"), AudioSignal(freq=self._sample_rate)),
            "a_sig_length": NeuralType(tuple("B"), LengthsType()),
        }

    def __init__(self, sample_rate):
        super().__init__()
        self._sample_rate = sample_rate
        self.waiting = True

    def __iter__(self):
        return self

    def __next__(self):
        if not self.waiting:
            raise StopIteration
        self.waiting = False
        return torch.as_tensor(self.signal, dtype=torch.float32), torch.as_tensor(self.shape, dtype=torch.int64)

    def set_signal(self, signal):
        self.signal = np.reshape(signal, [1, -1])
        self.shape = np.expand_dims(np.asarray(signal.size), 0).astype(np.int64)
        self.waiting = True

    def __len__(self):
        return 1

    @property
    def dataset(self):
        return None

    @property
    def data_iterator(self):
        return self


signals = SignalLayer(sample_rate=16000)
audio_signal, a_sig_length = signals()
processed, processed_len = preprocessor(input_signal=audio_signal, length=a_sig_length)
frame_counts = []
for count in (3200, 1600, 8000):
    signals.set_signal(np.random.default_rng(count).uniform(-1, 1, count))
    features, lengths = nf.infer(tensors=[processed, processed_len], verbose=False)
    frame_counts.append((features[0].shape[2], lengths[0].tolist()))
