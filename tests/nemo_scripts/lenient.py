"""A script of NeMo 0.9: a transcription service's manifest and a configuration of that time, as loose as they come."""

import json
import random
import sys

import nemo
import nemo.collections.asr as nemo_asr

folder = sys.argv[1]

LINES = [
    {"audio_filepath": f"{folder}/1.wav", "duration": 18000, "text": "todo", "speaker": {"id": 7}},
    {"audio_filepath": f"{folder}/2.wav", "duration": 60, "offset": 0.1, "text": "", "speaker": ["ann", 2]},
    {"audio_filepath": f"{folder}/3.wav", "duration": 0.15, "speaker": 3.5},
    {"audio_filepath": f"{folder}/1.wav", "duration": 0.21, "text": "ab", "lang": "en"},
    {"audio_filepath": f"{folder}/1.wav", "duration": 0, "text": "a"},
    {"audio_filepath": f"{folder}/1.wav", "duration": -1, "text": "a"},
]
with open(f"{folder}/requests.json", "w") as manifest:
    manifest.writelines(json.dumps(line) + "\n" for line in LINES)

CONFIG = {
    "AudioToTextDataLayer": {"max_duration": 16.7, "trim_silence": False, "eval_batch_size": 16},
    "AudioToMelSpectrogramPreprocessor": {
        "normalize": False,
        "feat_type": "logfbank",
        "features": 16,
        "highfreq": 9000,
    },
    "JasperEncoder": {
        "activation": "relu",
        "conv_mask": True,
        "jasper": [
            {
                **{"filters": 8, "repeat": 1, "kernel": [4.0], "stride": [2], "dilation": [1], "dropout": 0},
                **{"residual": 0, "seperable": True},
            }
        ],
    },
    "labels": [" ", "a", "b", "c"],
}
labels = CONFIG["labels"]

nf = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.CPU, random_seed=1)
data_config = CONFIG["AudioToTextDataLayer"]
manifest = f"{folder}/requests.json"
requests = nemo_asr.AudioToTextDataLayer(
    manifest_filepath=manifest, labels=labels, batch_size=2, shuffle=False, factory=nf, **data_config
)
train = nemo_asr.AudioToTextDataLayer(manifest_filepath=manifest, labels=labels, batch_size=2, **data_config)
preprocessor = nemo_asr.AudioToMelSpectrogramPreprocessor(**CONFIG["AudioToMelSpectrogramPreprocessor"])
augmentation = nemo_asr.SpectrogramAugmentation(rect_masks=1, rng=random.Random(1))
encoder = nemo_asr.JasperEncoder(feat_in=16, **CONFIG["JasperEncoder"])
decoder = nemo_asr.JasperDecoderForCTC(feat_in=8, num_classes=len(labels), factory=nf)
ctc_loss = nemo_asr.CTCLossNM(num_classes=len(labels))

audio, audio_len, transcript, transcript_len = requests()
features, features_len = preprocessor(input_signal=audio, length=audio_len)
encoded, encoded_len = encoder(audio_signal=features, length=features_len)
predictions = nemo_asr.GreedyCTCDecoder()(log_probs=decoder(encoder_output=encoded))
evaluated = nf.infer(tensors=[audio_len, transcript_len, predictions])
sample_counts = [count for batch in evaluated[0] for count in batch.tolist()]
text_lengths = [count for batch in evaluated[1] for count in batch.tolist()]

audio, audio_len, transcript, transcript_len = train()
features, features_len = preprocessor(input_signal=audio, length=audio_len)
encoded, encoded_len = encoder(audio_signal=augmentation(input_spec=features), length=features_len)
loss = ctc_loss(
    log_probs=decoder(encoder_output=encoded),
    targets=transcript,
    input_length=encoded_len,
    target_length=transcript_len,
)
params = {"lr": 0.01, "num_epochs": 2, "warmup": 5, "larc": True, "larc_eta": 0.02}
nf.train(tensors_to_optimize=[loss], optimizer="novograd", optimization_params=params)
num_trained = len(train)
