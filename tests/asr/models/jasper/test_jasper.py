"""The encoder and decoders as neural modules: names of weights, sizes, ports, lengths, shapes, refusals."""

import copy

import pytest
import torch
from torch import nn

from nemo_asr.models.jasper import (
    JasperDecoderForClassification,
    JasperDecoderForCTC,
    JasperEncoder,
    MaskedConv1d,
    layers,
    valid_frames,
)
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.base.errors import NeuralPortNmTensorMismatchError, UnknownNameError, UsageError
from nemo_lite.core.neural_types import AxisKind, AxisType, LengthsType, MelSpectrogramType, NeuralType
from nemo_lite.core.shapes import symbol, written

SMALL = {"filters": 8, "repeat": 2, "kernel": [5], "stride": [1], "dilation": [1], "dropout": 0.1, "residual": True}
PROLOGUE = {**SMALL, "repeat": 1, "stride": [2], "residual": False, "separable": True}


def block(filters, kernel, repeat=5, stride=1, dilation=1, residual=True, **keys):
    sizes = {"filters": filters, "repeat": repeat, "kernel": [kernel], "stride": [stride], "dilation": [dilation]}
    return {**sizes, "dropout": 0.2, "residual": residual, **keys}


def jasper_10x5_dr():
    sizes = [(256, 11), (384, 13), (512, 17), (640, 21), (768, 25)]
    dense = [block(filters, kernel, residual_dense=True) for filters, kernel in sizes for _ in range(2)]
    head = block(256, 11, repeat=1, stride=2, residual=False)
    tail = [block(896, 29, repeat=1, dilation=2, residual=False), block(1024, 1, repeat=1, residual=False)]
    return [head, *dense, *tail]


def quartznet_15x5():
    sizes = [(256, 33), (256, 39), (512, 51), (512, 63), (512, 75)]
    middle = [block(filters, kernel, separable=True) for filters, kernel in sizes for _ in range(3)]
    head = block(256, 33, repeat=1, stride=2, residual=False, separable=True)
    tail = block(512, 87, repeat=1, dilation=2, residual=False, separable=True)
    return [head, *middle, tail, block(1024, 1, repeat=1, residual=False)]


@pytest.mark.parametrize(("blocks", "millions"), [(jasper_10x5_dr, 333.0), (quartznet_15x5, 18.9)])
def test_published_models_have_their_published_size(blocks, millions):
    with torch.device("meta"):
        encoder = JasperEncoder(blocks(), activation="relu", feat_in=64)
        decoder = JasperDecoderForCTC(feat_in=1024, num_classes=28)
    assert (encoder.num_weights + decoder.num_weights) / 1e6 == pytest.approx(millions, rel=0.005)


def weights(*layers):
    """State-dictionary keys of a list of (place, kind), as NeMo 0.11 names them."""
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    kinds = {"masked": ["conv.weight"], "conv": ["weight"], "norm": norm, "se": ["fc.0.weight", "fc.2.weight"]}
    return [f"encoder.{place}.{leaf}" for place, kind in layers for leaf in kinds[kind]]


@pytest.mark.parametrize(("conv_mask", "conv"), [(True, "masked"), (False, "conv")])
def test_weights_have_nemo_s_names_in_nemo_s_order(conv_mask, conv):
    dense = {**SMALL, "residual_dense": True, "separable": True, "se": True}
    grouped = {**SMALL, "filters": 12, "residual": False, "groups": 2}
    encoder = JasperEncoder([PROLOGUE, dense, {**dense, "filters": 12}, grouped], "relu", 4, conv_mask=conv_mask)
    separable = [("mconv.0", conv), ("mconv.1", conv), ("mconv.2", "norm")]
    twice = [*separable, ("mconv.5", conv), ("mconv.6", conv), ("mconv.7", "norm"), ("mconv.8", "se")]
    first = [("res.0.0", conv), ("res.0.1", "norm")]
    second = [("res.1.0", conv), ("res.1.1", "norm")]
    shuffled = [("mconv.0", conv), ("mconv.1", "norm"), ("mconv.5", conv), ("mconv.6", "norm")]
    blocks = [separable, [*twice, *first], [*twice, *first, *second], shuffled]
    layers = [(f"{index}.{place}", kind) for index, layers in enumerate(blocks) for place, kind in layers]
    assert list(encoder.state_dict()) == weights(*layers)


def test_shapes_of_weights_are_those_of_1d_convolutions():
    state = JasperEncoder([PROLOGUE, {**SMALL, "separable": True}], "relu", 4).state_dict()
    wanted = {"0.mconv.0": (4, 1, 5), "0.mconv.1": (8, 4, 1), "1.mconv.5": (8, 1, 5), "1.res.0.0": (8, 8, 1)}
    assert {place: tuple(state[f"encoder.{place}.conv.weight"].shape) for place in wanted} == wanted


def test_decoder_weights_have_nemo_s_names():
    assert list(JasperDecoderForCTC(8, 3).state_dict()) == ["decoder_layers.0.weight", "decoder_layers.0.bias"]
    assert JasperDecoderForCTC(8, 3).decoder_layers[0].weight.shape == (4, 8, 1)
    classifier = JasperDecoderForClassification(feat_in=8, num_classes=3)
    assert list(classifier.state_dict()) == ["decoder_layers.0.weight", "decoder_layers.0.bias"]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_encoded_lengths_are_int64_and_count_the_frames_of_each_utterance_alone(dtype):
    encoder = JasperEncoder([PROLOGUE, SMALL, {**PROLOGUE, "stride": [3]}], "relu", 4).eval()
    lengths = torch.arange(1, 31, dtype=dtype)
    outputs, encoded = encoder(audio_signal=torch.randn(30, 4, 30), length=lengths)
    alone = [encoder(audio_signal=torch.randn(1, 4, n), length=torch.tensor([n]))[0].shape[2] for n in range(1, 31)]
    assert encoded.dtype == torch.int64
    assert encoded.tolist() == alone
    assert outputs.shape == (30, 8, 5)


def test_an_utterance_has_the_same_encoding_alone_and_padded_in_a_batch():
    blocks = [PROLOGUE, {**SMALL, "separable": True, "se": True}, {**SMALL, "residual_dense": True}]
    encoder = JasperEncoder(blocks, "relu", 4).double().eval()
    batch = torch.randn(3, 4, 61, dtype=torch.double)
    (alone, length) = encoder(audio_signal=batch[1:2, :, :33], length=torch.tensor([33]))
    (among, lengths) = encoder(audio_signal=batch, length=torch.tensor([61, 33, 50]))
    torch.testing.assert_close(among[1:2, :, : lengths[1]], alone)
    batch[1, :, 33:] = 1000.0
    other, _ = encoder(audio_signal=batch, length=torch.tensor([61, 33, 50]))
    assert (other - among)[1, :, : length[0]].abs().max() == 0.0


def plain(encoder, x, lengths):
    """The encoder written with torch's own layers, a mask before each convolution."""

    def run(layers, x, lengths):
        for layer in layers:
            if isinstance(layer, MaskedConv1d):
                x = x.masked_fill((torch.arange(x.shape[2]) >= lengths[:, None])[:, None], 0)
                x, lengths = nn.Conv1d.forward(layer.conv, x), (lengths - 1) // layer.stride[0] + 1
            else:
                x = nn.BatchNorm1d.forward(layer, x) if isinstance(layer, nn.BatchNorm1d) else layer(x)
        return x, lengths

    for block in encoder.encoder:
        out, after = run(block.mconv, x, lengths)
        x, lengths = block.mout(sum((run(branch, x, lengths)[0] for branch in block.res), start=out)), after
    return x, lengths


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_an_encoder_equals_torch_s_own_layers_in_outputs_gradients_and_running_statistics(mode):
    separable = {**SMALL, "separable": True, "dropout": 0.0}
    blocks = [{**PROLOGUE, "dropout": 0.0}, separable, {**SMALL, "dropout": 0.0}, {**separable, "dilation": [2]}]
    mine = JasperEncoder(blocks, "relu", 4).double()
    for parameter in mine.parameters():
        nn.init.normal_(parameter)
    theirs = copy.deepcopy(mine)
    x, lengths, results = torch.randn(3, 4, 41, dtype=torch.double), torch.tensor([41, 13, 30]), []
    for encoder, forward in ((mine, JasperEncoder.forward), (theirs, plain)):
        outputs, encoded = forward(getattr(encoder, mode)(), x, lengths)
        outputs = outputs * (torch.arange(21) < encoded[:, None])[:, None]  # what lies behind them is undefined
        (outputs * torch.arange(21)).sum().backward()
        results.append([outputs, encoded, [p.grad for p in encoder.parameters()], encoder.state_dict()])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_mask_of_a_batch_is_made_once_for_each_frame_rate(device, monkeypatch):
    made = []
    monkeypatch.setattr(layers, "valid_frames", lambda lengths, n: made.append(n) or valid_frames(lengths, n))
    keys = {**SMALL, "separable": True, "se": True}
    encoder = JasperEncoder([PROLOGUE, keys, {**keys, "residual_dense": True}], "relu", 4).to(device)
    x, lengths = torch.randn(2, 4, 40, device=device), torch.tensor([40, 21], device=device)
    encoder(audio_signal=x, length=lengths)[0].sum().backward()
    assert made == [40, 20]


def test_residual_mode_of_one_block_stays_with_that_block():
    encoder = JasperEncoder([{**SMALL, "residual_mode": "max"}, SMALL], "relu", 4)
    assert [block.takes_maximum for block in encoder.encoder] == [True, False]


def test_the_encoder_s_residual_mode_holds_for_blocks_without_one():
    encoder = JasperEncoder([SMALL, {**SMALL, "residual_mode": "add"}], "relu", 4, residual_mode="max")
    assert [block.takes_maximum for block in encoder.encoder] == [True, False]


def test_a_dense_group_ends_with_the_first_block_that_is_not_dense():
    dense = {**SMALL, "residual_dense": True}
    encoder = JasperEncoder([dense, dense, SMALL, dense, dense], "relu", 4)
    assert [len(block.res) for block in encoder.encoder] == [1, 2, 1, 1, 2]
    encoder(audio_signal=torch.randn(1, 4, 10), length=torch.tensor([10]))


def test_all_weights_of_an_encoder_have_gradients():
    dense = {**SMALL, "residual_dense": True, "separable": True, "se": True, "heads": 2, "dropout": 0.0}
    encoder = JasperEncoder([{**PROLOGUE, "filters": 6}, dense, {**dense, "groups": 2}], "swish", 4)
    encoder(audio_signal=torch.randn(2, 4, 40), length=torch.tensor([40, 21]))[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_ports_carry_the_sizes_that_are_known():
    encoder = JasperEncoder([PROLOGUE, {**SMALL, "filters": 12}], "relu", 64, frame_splicing=3)
    assert [port.brief for port in encoder.input_ports.values()] == ["B D=192 T Spectrogram", "B Lengths"]
    outputs = ["B D=12 T AcousticEncodedRepresentation", "B Lengths"]
    assert [port.brief for port in encoder.output_ports.values()] == outputs
    decoder = JasperDecoderForCTC(12, 28)
    assert decoder.input_ports["encoder_output"].brief == "B D=12 T AcousticEncodedRepresentation"
    assert decoder.output_ports["output"].brief == "B T D=29 Logprobs"
    assert decoder.input_ports["encoder_output"].explain(encoder.output_ports["outputs"]).fits


class Features(DataLayerNM):
    """Spectrograms of a stated number of features."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    @property
    def output_ports(self):
        axes = (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, self.size), AxisType(AxisKind.Time))
        return {"features": NeuralType(axes, MelSpectrogramType()), "lengths": NeuralType("B", LengthsType())}


def test_an_encoder_is_connected_to_as_many_features_as_it_takes():
    encoder = JasperEncoder([PROLOGUE], "relu", 64)
    features, lengths = Features(64)()
    encoded, _ = encoder(audio_signal=features, length=lengths)
    assert JasperDecoderForCTC(8, 28)(encoder_output=encoded).ntype.axes[2].size == 29
    features, lengths = Features(80)()
    with pytest.raises(NeuralPortNmTensorMismatchError, match=r"(?s)audio_signal cannot take .*D is 80, not 64"):
        encoder(audio_signal=features, length=lengths)
    with pytest.raises(NeuralPortNmTensorMismatchError, match=r"(?s)encoder_output cannot take .*D is 8, not 12"):
        JasperDecoderForCTC(12, 28)(encoder_output=encoded)


@pytest.mark.slow
def test_an_encoder_can_be_exported_with_free_time_and_keeps_its_masks():
    blocks = [PROLOGUE, {**SMALL, "separable": True, "se": True}]
    encoder = JasperEncoder(blocks, "relu", 4).eval()
    time = torch.export.Dim("time", min=8, max=400)
    shapes = {"audio_signal": {2: time}, "length": {}}
    inputs = {"audio_signal": torch.randn(2, 4, 40), "length": torch.tensor([40, 21])}
    program = torch.export.export(encoder, (), inputs, dynamic_shapes=shapes).module()
    given = {"audio_signal": torch.randn(2, 4, 67), "length": torch.tensor([30, 67])}
    for exported, eager in zip(program(**given), encoder(**given), strict=True):
        torch.testing.assert_close(exported, eager)


def test_symbolic_time_is_divided_by_the_strides():
    encoder = JasperEncoder([PROLOGUE, SMALL, {**PROLOGUE, "repeat": 2}], "relu", 4)
    shapes = encoder.output_shapes({"audio_signal": (symbol("B"), 4, symbol("T")), "length": (symbol("B"),)})
    assert written(shapes["outputs"]) == "B 8 T/8"
    assert written(shapes["encoded_lengths"]) == "B"
    outputs, lengths = encoder(audio_signal=torch.randn(1, 4, 41), length=torch.tensor([41]))
    assert outputs.shape[2] == lengths[0] == shapes["outputs"][2].value(T=41) == 6
    decoded = JasperDecoderForCTC(8, 28).output_shapes({"encoder_output": shapes["outputs"]})
    assert written(decoded["output"]) == "B T/8 29"


def test_the_intermediate_output_is_that_of_an_encoder_that_ends_there():
    blocks = [{**block, "dropout": 0.0} for block in (PROLOGUE, SMALL, {**PROLOGUE, "filters": 12}, SMALL)]
    encoder, shorter = JasperEncoder(blocks, "relu", 4, intermediate_block=-1), JasperEncoder(blocks[:2], "relu", 4)
    shorter.load_state_dict({name: encoder.state_dict()[name] for name in shorter.state_dict()})
    values = {"audio_signal": torch.randn(2, 4, 41), "length": torch.tensor([41, 20])}
    *_, middle, lengths = encoder(**values)
    wanted, wanted_lengths = shorter(**values)
    torch.testing.assert_close((middle, lengths), (wanted, wanted_lengths))
    for each in (middle, wanted):
        (each * torch.arange(each.shape[2])).sum().backward()
    for name, weight in shorter.named_parameters():
        torch.testing.assert_close(encoder.get_parameter(name).grad, weight.grad)
    shapes = encoder.output_shapes({"audio_signal": (symbol("B"), 4, symbol("T")), "length": (symbol("B"),)})
    assert (written(shapes["intermediate"]), written(shapes["outputs"])) == ("B 8 T/2", "B 8 T/4")


@pytest.mark.parametrize("block", [1, 7])
def test_an_intermediate_block_that_is_none_is_refused(block):
    told = f"no such intermediate block: got {block}, wanted a block before the last one, 0 to 0, or -1"
    with pytest.raises(UsageError, match=told):
        JasperEncoder([PROLOGUE, SMALL], "relu", 4, intermediate_block=block)


def test_the_decoder_gives_log_probabilities_over_labels_and_blank():
    decoder = JasperDecoderForCTC(8, 3, vocabulary=["a", "b", "c"])
    output = decoder(encoder_output=torch.randn(2, 8, 5))
    assert output.shape == (2, 5, 4)
    torch.testing.assert_close(output.exp().sum(2), torch.ones(2, 5))
    assert decoder.vocabulary == ["a", "b", "c"]


def test_log_probabilities_are_float32_for_half_precision_weights():
    decoder = JasperDecoderForCTC(8, 3).bfloat16()
    assert decoder(encoder_output=torch.randn(2, 8, 5, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b"], "vocabulary and num_classes differ: got 2 labels, num_classes 3"),
        (["a", "b", "a"], "a label is in the vocabulary twice: got 'a'"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(labels, message):
    with pytest.raises(UsageError, match=message):
        JasperDecoderForCTC(8, 3, vocabulary=labels)


@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_classification_pools_the_valid_frames(pooling):
    decoder = JasperDecoderForClassification(feat_in=4, num_classes=3, pooling_type=pooling).eval()
    x = torch.randn(2, 4, 9)
    alone = decoder(encoder_output=x[:1, :, :5])
    x[0, :, 5:] = 50.0
    among = decoder(encoder_output=x, encoded_lengths=torch.tensor([5, 9]))
    torch.testing.assert_close(among[:1], alone)
    assert not torch.allclose(decoder(encoder_output=x)[:1], alone)


def test_classification_gives_probabilities_on_request():
    decoder = JasperDecoderForClassification(feat_in=4, num_classes=3, return_logits=False)
    torch.testing.assert_close(decoder(encoder_output=torch.randn(2, 4, 9)).sum(1), torch.ones(2))
    assert str(decoder.input_ports["encoded_lengths"]) == str(NeuralType("B", LengthsType(), optional=True))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"activation": "swsh"}, r'activation "swsh" is not known; known: .*\(did you mean swish\?\)'),
        ({"init_mode": "xavier"}, r'init_mode "xavier" is not known; known: kaiming_normal'),
        ({"normalization_mode": "bach"}, r'normalization_mode "bach" is not known.*did you mean batch'),
        ({"residual_mode": "sum"}, r'residual_mode "sum" is not known; known: add, max, stride_add, stride_last'),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(keys, message):
    with pytest.raises(UnknownNameError, match=f"JasperEncoder.*{message}"):
        JasperEncoder(**{"jasper": [SMALL], "activation": "relu", "feat_in": 4, **keys})


def test_an_unknown_pooling_is_refused():
    with pytest.raises(UnknownNameError, match='pooling_type "mean" is not known; known: avg, max'):
        JasperDecoderForClassification(feat_in=4, num_classes=3, pooling_type="mean")


def test_an_unknown_block_key_of_a_script_is_left_out_with_the_nearest_one(capsys):
    JasperEncoder([SMALL, {**SMALL, "residul": True}], "relu", 4)
    assert "jasper[1].residul is not a key (did you mean residual?); it is left out" in capsys.readouterr().err


def test_a_residual_that_cannot_fit_is_refused_by_block():
    with pytest.raises(UsageError, match=r'JasperEncoder\.jasper\[1\]: residual_mode "add" needs as many frames'):
        JasperEncoder([SMALL, {**SMALL, "stride": [2]}], "relu", 4)


@pytest.mark.parametrize(("mode", "spread"), [("xavier_uniform", 0.125), ("kaiming_normal", 0.1768)])
def test_weights_are_drawn_as_init_mode_says(mode, spread):
    torch.manual_seed(0)
    encoder = JasperEncoder([{**SMALL, "filters": 64, "kernel": [1], "residual": False}], "relu", 64, init_mode=mode)
    assert encoder.encoder[0].mconv[0].conv.weight.std().item() == pytest.approx(spread, rel=0.05)


def small_encoder(conv_mask: bool = True) -> JasperEncoder:
    plain = {"filters": 8, "repeat": 2, "kernel": [3], "stride": [1], "dilation": [1], "dropout": 0.0, "residual": True}
    blocks = [plain, {**plain, "separable": True, "se": True}]
    return JasperEncoder(jasper=blocks, activation="relu", feat_in=4, conv_mask=conv_mask)


def names_before_0_9(tensors):
    """As NeMo 0.8 named them: conv for mconv, and convolutions without a part of their own."""
    older = {}
    for name, value in tensors.items():
        name = name.replace(".mconv.", ".CONV.").replace(".conv.weight", ".weight") if value.dim() == 3 else name
        older[name.replace(".CONV.", ".conv.").replace(".mconv.", ".conv.")] = value
    return older


@pytest.mark.parametrize("conv_mask", [True, False])
def test_weights_of_before_0_9_and_of_the_other_conv_mask_are_read(tmp_path, conv_mask):
    saved, path = small_encoder(), tmp_path / "JasperEncoder-STEP-1.pt"
    other = small_encoder(not conv_mask).state_dict()
    stored = saved.state_dict()
    assert "encoder.0.conv.0.weight" in names_before_0_9(stored)
    assert len(names_before_0_9(stored)) == len(stored)
    for names in (names_before_0_9(stored), dict(zip(other, stored.values(), strict=True))):
        loaded = small_encoder(conv_mask)
        torch.save({name: value for name, value in names.items() if "num_batches" not in name}, path)
        loaded.restore_from(path)
        assert all(
            torch.equal(mine, theirs)
            for mine, theirs in zip(loaded.state_dict().values(), stored.values(), strict=True)
        )


def test_without_masks_an_encoder_needs_no_lengths():
    block = {"filters": 4, "repeat": 1, "kernel": [3], "stride": [2], "dilation": [1], "dropout": 0.0}
    arguments = {"jasper": [{**block, "residual": False}], "activation": "relu", "feat_in": 8}
    encoder = JasperEncoder(**arguments, conv_mask=False).eval()
    signal = torch.randn(2, 8, 11)
    out, lengths = encoder(signal)
    torch.testing.assert_close(out, encoder(signal, torch.tensor([11, 11]))[0])
    assert lengths.tolist() == [6, 6]
    assert encoder.input_ports["length"].optional
    assert not JasperEncoder(**arguments).input_ports["length"].optional


@pytest.mark.slow
def test_an_exported_encoder_masks_between_sub_blocks_too():
    """torch.export puts proxies in the place of modules, so blocks may not ask which object a layer is."""
    block = {"filters": 8, "repeat": 2, "kernel": [3], "stride": [1], "dilation": [1], "dropout": 0.0}
    encoder = JasperEncoder(jasper=[{**block, "residual": True}], activation="relu", feat_in=4).eval()
    free = torch.export.Dim.DYNAMIC
    example = torch.randn(2, 4, 30), torch.tensor([30, 11])
    with torch.no_grad():
        program = torch.export.export(encoder, example, dynamic_shapes=({0: free, 2: free}, {0: free}))
        x, length = torch.randn(1, 4, 25), torch.tensor([19])
        got, wanted = program.module()(x, length), encoder(x, length)
    assert got[1].tolist() == wanted[1].tolist() == [19]
    torch.testing.assert_close(got[0][..., :19], wanted[0][..., :19])


@pytest.mark.long
@pytest.mark.slow
def test_an_encoder_and_its_decoder_compile_as_one_graph():
    blocks = [PROLOGUE, {**SMALL, "residual_dense": True, "separable": True, "se": True}, {**SMALL, "dilation": [2]}]
    encoder = JasperEncoder(blocks, activation="relu", feat_in=8)
    decoder = JasperDecoderForCTC(feat_in=8, num_classes=3)

    def run(features, lengths):
        encoded, lengths = encoder(audio_signal=features, length=lengths)
        return decoder(encoder_output=encoded), lengths

    compiled = torch.compile(run, backend="eager", fullgraph=True)  # refuses a graph break
    assert compiled(torch.randn(2, 8, 20), torch.tensor([20, 13]))[0].shape == (2, 10, 4)
