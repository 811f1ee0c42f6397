"""The decoder for speakers: pooled vectors, embeddings, lengths, refusals."""

import pytest
import torch

from nemo_asr.models.speaker import JasperDecoderForSpkrClass, pooled
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.neural_types import LengthsType, NeuralType

WIDTHS = {"xvector": 8, "gram": 16, "superVector": 24}  # of 4 channels


def decoder_of(mode="xvector", sizes=(6, 5)):
    return JasperDecoderForSpkrClass(feat_in=4, num_classes=3, emb_sizes=sizes, pool_mode=mode)


@pytest.mark.parametrize("mode", WIDTHS)
def test_each_pooling_has_its_width(mode):
    decoder = decoder_of(mode).eval()
    assert decoder.mid1[0].in_features == WIDTHS[mode]
    logits, embs = decoder(encoder_output=torch.randn(2, 4, 9))
    assert (logits.shape, embs.shape) == ((2, 3), (2, 6))


def test_weights_have_nemo_s_names():
    stats = ["running_mean", "running_var", "num_batches_tracked"]
    layers = [[f"{mid}.0.weight", f"{mid}.0.bias", *(f"{mid}.1.{stat}" for stat in stats)] for mid in ("mid1", "mid2")]
    assert list(decoder_of().state_dict()) == [*layers[0], *layers[1], "final.weight", "final.bias"]


def test_the_pooled_vectors_are_those_of_their_formulas():
    x = torch.randn(2, 4, 9)
    statistics = torch.cat([x.mean(2), x.std(2)], dim=1)
    products = (x @ x.transpose(1, 2)).flatten(1) / 9
    torch.testing.assert_close(pooled(x, None, "xvector"), statistics)
    torch.testing.assert_close(pooled(x, None, "gram"), products)
    torch.testing.assert_close(pooled(x, None, "superVector"), torch.cat([statistics, products], dim=1))


def test_the_embedding_is_what_the_first_layer_gives_before_its_relu():
    decoder, x = decoder_of().eval(), torch.randn(2, 4, 9)
    _, embs = decoder(encoder_output=x)
    torch.testing.assert_close(embs, decoder.mid1[1](decoder.mid1[0](pooled(x, None, "xvector"))))
    assert (embs < 0).any()


@pytest.mark.parametrize("mode", WIDTHS)
def test_what_lies_behind_an_utterance_changes_nothing(mode):
    torch.manual_seed(0)  # with some weights no ReLU passes anything on, and all inputs give the same
    decoder, x = decoder_of(mode).eval(), torch.randn(2, 4, 9)
    alone, _ = decoder(encoder_output=x[:1, :, :5], encoded_lengths=torch.tensor([5]))
    x[0, :, 5:] = 50.0
    among, _ = decoder(encoder_output=x, encoded_lengths=torch.tensor([5, 9]))
    torch.testing.assert_close(among[:1], alone)
    assert not torch.allclose(decoder(encoder_output=x)[0][:1], alone)
    assert str(decoder.input_ports["encoded_lengths"]) == str(NeuralType("B", LengthsType(), optional=True))


def test_gradients_are_finite_where_a_channel_is_constant_and_where_there_is_one_frame():
    decoder = decoder_of()
    for x in (torch.ones(2, 4, 9), torch.randn(2, 4, 1)):
        x.requires_grad_()
        decoder(encoder_output=x)[0].sum().backward()
        assert x.grad is not None
        assert bool(x.grad.isfinite().all())


def test_a_batch_of_one_trains_with_the_statistics_of_those_before():
    decoder = decoder_of().train()
    decoder(encoder_output=torch.randn(8, 4, 9))
    before = decoder.mid1[1].running_mean.clone()
    logits, _ = decoder(encoder_output=torch.randn(1, 4, 9))
    assert bool(logits.isfinite().all())
    assert torch.equal(decoder.mid1[1].running_mean, before)


@pytest.mark.parametrize("sizes", ["6,5", ["6", "5"], [6, 5]])
def test_sizes_of_embeddings_may_be_texts(sizes):
    assert decoder_of(sizes=sizes).mid2[0].weight.shape == (5, 6)


@pytest.mark.parametrize("sizes", ["6", [6, 5, 4], ["six", 5], [6, 0]])
def test_other_sizes_of_embeddings_are_refused(sizes):
    with pytest.raises(
        UsageError, match=r"emb_sizes are .* wanted two whole numbers|emb_sizes(\[1\])? is .*, wanted .*int from 1"
    ):
        decoder_of(sizes=sizes)


def test_an_unknown_pooling_counts_as_xvector_and_is_told(caplog):
    assert decoder_of("mean").mid1[0].in_features == WIDTHS["xvector"]
    assert 'pool_mode "mean" is not known and counts as xvector' in caplog.text


def test_an_unknown_initialisation_is_refused():
    with pytest.raises(UnknownNameError, match='JasperDecoderForSpkrClass: init_mode "xavier" is not known'):
        JasperDecoderForSpkrClass(feat_in=4, num_classes=3, init_mode="xavier")
