"""ContextNet as neural modules: names of weights, ports, what an utterance's neighbours change."""

import pytest
import torch

from nemo_asr.data.speech_data_layer import SpeechPorts
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.models.contextnet import ContextNetDecoderForCTC, ContextNetEncoder
from nemo_asr.models.jasper import JasperEncoder
from nemo_asr.models.losses import CTCLossNM
from nemo_lite.base.errors import UnknownNameError
from nemo_lite.core.shapes import symbol, written

BLOCK = {"filters": 8, "repeat": 2, "kernel": [5], "stride": [1], "dilation": [1], "dropout": 0.0, "residual": True}
CONTEXT = {**BLOCK, "separable": True, "se": True, "se_reduction_ratio": 4}


def test_the_encoder_is_a_jasper_encoder_that_does_not_mask():
    encoder = ContextNetEncoder([CONTEXT], "swish", feat_in=4)
    jasper = JasperEncoder([CONTEXT], "swish", feat_in=4, conv_mask=False)
    assert isinstance(encoder, JasperEncoder)
    assert list(encoder.state_dict()) == list(jasper.state_dict())
    encoder.load_state_dict(jasper.state_dict())
    audio, lengths = torch.randn(2, 4, 30), torch.tensor([30, 12])
    for module in (encoder, jasper):
        module.eval()
    torch.testing.assert_close(encoder(audio_signal=audio, length=lengths), jasper(audio_signal=audio, length=lengths))
    shorter, _ = encoder(audio_signal=audio[1:, :, :12], length=lengths[1:])
    assert not torch.allclose(encoder(audio_signal=audio, length=lengths)[0][1, :, :12], shorter[0])


@pytest.mark.parametrize("key", ["se_context_window", "se_context_size"])
def test_the_window_of_squeeze_and_excitation_has_both_its_names(key):
    encoder = ContextNetEncoder([{**CONTEXT, key: 7}], "relu", feat_in=4)
    windows = [layer.context_window for layer in encoder.modules() if hasattr(layer, "context_window")]
    assert windows == [7]


def test_the_decoder_has_nemo_s_weights_and_gives_log_probabilities():
    decoder = ContextNetDecoderForCTC(feat_in=8, num_classes=3, hidden_size=5)
    leaves = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert list(decoder.state_dict()) == [*(f"rnn.{leaf}" for leaf in leaves), "clf.weight", "clf.bias"]
    assert decoder.rnn.weight_hh_l0.shape == (20, 5)
    out = decoder(encoder_output=torch.randn(2, 8, 9))
    assert out.shape == (2, 9, 4)
    torch.testing.assert_close(out.exp().sum(2), torch.ones(2, 9))
    assert ContextNetDecoderForCTC(feat_in=8, num_classes=3).rnn.hidden_size == 640


def test_a_frame_of_the_decoder_depends_on_those_before_it_only():
    decoder = ContextNetDecoderForCTC(feat_in=8, num_classes=3, hidden_size=5).eval()
    x = torch.randn(1, 8, 9)
    before = decoder(encoder_output=x)
    x[:, :, 5] += 1.0
    after = decoder(encoder_output=x)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 8], after[:, 8])


def test_an_unknown_initialisation_is_refused():
    with pytest.raises(UnknownNameError, match='ContextNetDecoderForCTC: init_mode "xavier" is not known'):
        ContextNetDecoderForCTC(feat_in=8, num_classes=3, init_mode="xavier")


def test_a_dag_of_both_goes_from_audio_to_the_ctc_loss():
    audio, audio_lengths, texts, text_lengths = SpeechPorts(16000)()
    features, lengths = AudioToMelSpectrogramPreprocessor(features=4)(input_signal=audio, length=audio_lengths)
    encoded, encoded_lengths = ContextNetEncoder([CONTEXT], "swish", feat_in=4)(audio_signal=features, length=lengths)
    decoder = ContextNetDecoderForCTC(feat_in=8, num_classes=28, hidden_size=5)
    log_probs = decoder(encoder_output=encoded)
    loss = CTCLossNM(num_classes=28)(
        log_probs=log_probs, targets=texts, input_length=encoded_lengths, target_length=text_lengths
    )
    assert loss.ntype.axes in (None, ())
    shape = decoder.output_shapes({"encoder_output": (symbol("B"), 8, symbol("T"))})["output"]
    assert written(shape) == "B T 29"
