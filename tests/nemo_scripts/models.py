"""A script for NeMo 0.11: a model from a file, transcription, its own labels, training a little, saving it again."""

import argparse
import os

import nemo
import nemo.collections.asr as nemo_asr
from nemo.collections.asr.helpers import post_process_predictions
from nemo.collections.asr.models import ASRConvCTCModel, QuartzNet
from nemo.core.nemo_model import NeMoModel

parser = argparse.ArgumentParser()
parser.add_argument("--asr_model", required=True)
parser.add_argument("--config", required=True)
parser.add_argument("--dataset", required=True)
parser.add_argument("--work_dir", required=True)
args = parser.parse_args()

neural_factory = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.CPU)
print([info.pretrained_model_name for info in QuartzNet.list_pretrained_models()])

asr_model = nemo_asr.models.ASRConvCTCModel.from_pretrained(model_info=args.asr_model, local_rank=0)
assert isinstance(asr_model, NeMoModel)
asr_model.eval()
vocabulary = asr_model.vocabulary
data_layer = nemo_asr.AudioToTextDataLayer(
    manifest_filepath=args.dataset, labels=vocabulary, batch_size=2, shuffle=False, sample_rate=8000
)
audio, audio_len, transcript, transcript_len = data_layer()
log_probs, encoded_len = asr_model(input_signal=audio, length=audio_len)
predictions = nemo_asr.GreedyCTCDecoder()(log_probs=log_probs)
evaluated = neural_factory.infer(tensors=[predictions, transcript, transcript_len])
print(post_process_predictions(evaluated[0], vocabulary))

# The encoder with labels of one's own: a new decoder, trained for a step.
asr_model = ASRConvCTCModel.from_pretrained(args.asr_model, new_vocab=["a", "b", "c", "d"])
asr_model.train()
data_layer = nemo_asr.AudioToTextDataLayer(
    manifest_filepath=args.dataset, labels=asr_model.vocabulary, batch_size=2, sample_rate=8000
)
audio, audio_len, transcript, transcript_len = data_layer()
log_probs, encoded_len = asr_model(input_signal=audio, length=audio_len)
loss = nemo_asr.CTCLossNM(num_classes=len(asr_model.vocabulary))(
    log_probs=log_probs, targets=transcript, input_length=encoded_len, target_length=transcript_len
)
neural_factory.reset_trainer()
neural_factory.train([loss], optimizer="novograd", optimization_params={"max_steps": 1, "lr": 0.01})
asr_model.save_to("tuned", output_folder=args.work_dir)
again = ASRConvCTCModel.from_pretrained(os.path.join(args.work_dir, "tuned.nemo"))
assert again.vocabulary == ["a", "b", "c", "d"]
assert again.num_weights == asr_model.num_weights

# A model from its YAML file.
fresh = ASRConvCTCModel.import_from_config(args.config)
print(type(fresh).__name__, [str(module) for module in fresh.modules])

for missing in ("nowhere.nemo", "QuartzNet15x5-Em"):
    try:
        ASRConvCTCModel.from_pretrained(missing)
    except FileNotFoundError as error:
        print(error)
