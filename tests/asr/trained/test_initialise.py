"""initialise: what a new model takes over of a trained one, by name, shape and label, and what is said of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nemo_asr.models.jasper import JasperEncoder
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.prediction import RNNTDecoder, StatelessTransducerDecoder
from nemo_asr.trained.fine_tuning import initialise
from nemo_lite.base.errors import CheckpointError

LABELS = [" ", "a", "b", "c"]


class Encoder(nn.Module):
    def __init__(self, width: int = 3, deeper: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(2, 3), nn.BatchNorm1d(3)
        self.second = nn.Linear(3, width)
        if deeper:
            self.third = nn.Linear(width, width)


class Decoder(nn.Module):
    """A hidden layer, and a row for each label and the blank."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 3), nn.Linear(3, num_labels + 1)


def modules(labels=LABELS, **encoder):
    return {"Encoder": Encoder(**encoder), "Decoder": Decoder(len(labels))}


def weights(named):
    return {name: {key: value.clone() for key, value in module.state_dict().items()} for name, module in named.items()}


def moved(old, new, *, old_labels=LABELS, labels=LABELS):
    return initialise(new, weights(old), heads=["Decoder"], labels=labels, old_labels=old_labels)


def test_a_model_of_the_same_kind_takes_everything():
    old, new = modules(), modules()
    old["Encoder"].norm.running_mean.fill_(7)
    done = moved(old, new)
    for name in old:
        for key, value in old[name].state_dict().items():
            torch.testing.assert_close(new[name].state_dict()[key], value, rtol=0, atol=0)
    assert done.is_complete
    assert str(done) == "Encoder: all 9 tensors loaded\nDecoder: all 4 tensors loaded"


def test_rows_follow_their_labels_and_the_blank_is_last():
    labels = ["x", "c", " ", "b", "y"]
    old, new = modules(), modules(labels)
    before = new["Decoder"].out.weight.clone()
    done = moved(old, new, labels=labels)
    out, was = new["Decoder"].out, old["Decoder"].out
    for layer, trained in ((out.weight, was.weight), (out.bias, was.bias)):
        torch.testing.assert_close(layer[[1, 2, 3, 5]], trained[[3, 0, 2, 4]], rtol=0, atol=0)
    torch.testing.assert_close(out.weight[[0, 4]], before[[0, 4]], rtol=0, atol=0)
    torch.testing.assert_close(new["Decoder"].hidden.weight, old["Decoder"].hidden.weight, rtol=0, atol=0)
    assert (done.kept_labels, done.new_labels, done.left_labels) == (["c", " ", "b"], ["x", "y"], ["a"])
    assert str(done).splitlines()[1:] == [
        "Decoder: 2 of 4 tensors loaded, 2 by label (out.weight, out.bias)",
        "labels: 3 kept with the blank (c space b), 2 new (x y), 1 left (a)",
    ]


def test_labels_in_another_order_are_not_the_same_labels():
    labels = ["c", "b", "a", " "]
    old, new = modules(), modules(labels)
    done = moved(old, new, labels=labels)
    torch.testing.assert_close(new["Decoder"].out.weight[:4], old["Decoder"].out.weight[[3, 2, 1, 0]], rtol=0, atol=0)
    assert "labels: 4 kept with the blank (c b a space), 0 new, 0 left" in str(done)


def test_rows_are_taken_by_label_in_the_decoder_only():
    labels = ["c", "b"]  # two and the blank: the encoder's vectors have three rows, too
    old, new = modules(["a", "c"]), modules(labels)
    moved(old, new, old_labels=["a", "c"], labels=labels)
    torch.testing.assert_close(new["Encoder"].first.weight, old["Encoder"].first.weight, rtol=0, atol=0)


def test_what_is_new_and_what_was_left_is_said_by_name_and_count():
    old, new = modules(), modules(width=4, deeper=True)
    weights_of_old = weights(old) | {"Critic": {"w": torch.zeros(1)}}
    weights_of_old["Encoder"]["fourth.bias"] = torch.zeros(3)
    done = initialise(new, weights_of_old, heads=["Decoder"], labels=LABELS, old_labels=LABELS)
    assert not done.is_complete
    assert str(done).splitlines() == [
        "Encoder: 7 of 11 tensors loaded",
        "  4 new: second.weight (is (4, 3), was (3, 3)), second.bias (is (4), was (3)), third.weight, third.bias",
        "  1 left: fourth.bias",
        "Decoder: all 4 tensors loaded",
        "not used: Critic",
    ]


def test_long_lists_are_cut():
    done = moved({"Encoder": Encoder(), "Decoder": nn.Linear(1, 1)}, modules())
    assert "Decoder: new, all 4 tensors\n  2 left: weight, bias" in str(done)
    big = nn.ModuleDict({f"layer{n}": nn.Linear(1, 1, bias=False) for n in range(11)})
    done = initialise(
        {**modules(), "Big": big}, weights(modules()), heads=["Decoder"], labels=LABELS, old_labels=LABELS
    )
    assert "Big: new, all 11 tensors" in str(done)
    with_big = {**modules(), "Decoder": big}
    done = initialise(modules(), weights(with_big), heads=["Decoder"], labels=LABELS, old_labels=LABELS)
    assert "  11 left: layer0.weight," in str(done)
    assert "layer7.weight and 3 more" in str(done)


def test_labels_that_nobody_knows_are_taken_to_be_the_same():
    old, new = modules(), modules()
    done = moved(old, new, old_labels=None)
    torch.testing.assert_close(new["Decoder"].out.weight, old["Decoder"].out.weight, rtol=0, atol=0)
    assert str(done).endswith("its labels are not known: they are taken to be those of the new model")
    done = moved(old, modules(["a"]), old_labels=None, labels=["a"])
    assert "2 new: out.weight (is (2, 3), was (5, 3)), out.bias (is (2), was (5))" in str(done)


def test_weights_of_another_model_are_refused():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(5, 5), nn.BatchNorm1d(5)  # the count of batches has no shape

    told = (
        r"none of its tensors before the decoder has the name and the shape of one of the new model: "
        r"got Encoder \(7 tensors\), wanted Encoder \(9 tensors\), Decoder \(4 tensors\); "
        r"use the configuration that it was trained with"
    )
    new = modules()
    with pytest.raises(CheckpointError, match=told):
        initialise(new, {"Encoder": Other().state_dict()}, heads=["Decoder"], labels=LABELS, old_labels=LABELS)


def test_weights_are_those_of_the_new_models_dtype():
    old, new = modules(), modules()
    halves = {
        name: {key: value.half() if value.is_floating_point() else value for key, value in tensors.items()}
        for name, tensors in weights(old).items()
    }
    initialise(new, halves, heads=["Decoder"], labels=["c", "a", " ", "b"], old_labels=LABELS)
    assert {value.dtype for value in new["Decoder"].state_dict().values()} == {torch.float32}
    torch.testing.assert_close(new["Encoder"].first.weight, old["Encoder"].first.weight.half().float(), rtol=0, atol=0)


def test_weights_with_names_of_before_0_9_are_taken_over():
    block = {
        "filters": 4,
        "repeat": 1,
        "kernel": [3],
        "stride": [1],
        "dilation": [1],
        "dropout": 0.0,
        "residual": False,
    }
    old, new = (JasperEncoder(jasper=[block], activation="relu", feat_in=4) for _ in range(2))
    older = {
        name.replace("mconv", "conv").replace("0.conv.w", "0.w"): value for name, value in old.state_dict().items()
    }
    assert "encoder.0.conv.0.weight" in older
    done = initialise({"E": new}, {"E": older}, heads=["D"], labels=LABELS, old_labels=LABELS)
    assert done.is_complete


# New labels that trained labels write together.


def test_a_new_label_starts_from_the_mean_of_its_parts():
    labels = ["a", "\u2581cab", "bb", "ax", "b"]  # the second one also writes the space
    old, new = modules(), modules(labels)
    before = new["Decoder"].out.weight.clone()
    done = moved(old, new, labels=labels)
    trained = old["Decoder"].out
    torch.testing.assert_close(new["Decoder"].out.weight[1], trained.weight[[0, 3, 1, 2]].mean(0))
    torch.testing.assert_close(new["Decoder"].out.bias[1], trained.bias[[0, 3, 1, 2]].mean())
    torch.testing.assert_close(new["Decoder"].out.weight[2], trained.weight[2])  # b twice
    torch.testing.assert_close(new["Decoder"].out.weight[3], before[3], rtol=0, atol=0)  # nothing writes x
    assert done.parts == {"\u2581cab": [" ", "c", "a", "b"], "bb": ["b", "b"]}
    assert str(done).splitlines()[-1] == (
        "2 of the new labels start from the mean of their parts: \u2581cab = space + c + a + b, bb = b + b"
    )


def test_the_parts_of_a_piece_are_the_fewest_trained_pieces():
    old_labels = ["a", "b", "c", "\u2581", "ab", "\u2581a", "bc", "abc"]
    old, new = modules(old_labels), modules(["\u2581abc", "abcb"])
    done = moved(old, new, old_labels=old_labels, labels=["\u2581abc", "abcb"])
    # Two cuts of the first have two parts: that with the longer first part counts. The second one has one such cut.
    assert done.parts == {"\u2581abc": ["\u2581a", "bc"], "abcb": ["abc", "b"]}


# Transducers.


def transducer(labels, durations=(0, 1, 2), **changes):
    """An encoder, an RNN decoder whose LSTM has as many rows as some vocabulary, a joint network and a CTC head."""
    prednet, jointnet = {"pred_hidden": 4}, {"joint_hidden": 5, "pred_hidden": 4, "encoder_hidden": 3}
    kind, options = changes.get("prediction", (RNNTDecoder, {}))
    return {
        "Encoder": Encoder(),
        "Prediction": kind(prednet, len(labels), **options),
        "Joint": RNNTJoint(
            jointnet, len(labels), durations, big_blank_durations=changes.get("big_blank_durations", ())
        ),
        "Decoder": Decoder(len(labels)),
    }


HEADS = ["Prediction", "Joint", "Decoder"]


def test_a_hybrid_keeps_rows_in_all_its_heads_and_the_rows_behind_the_labels():
    labels = ["c", "x", "a"]
    old, new = transducer(LABELS), transducer(labels)
    with torch.no_grad():
        old["Prediction"].prediction["embed"].weight[-1] = 7  # a stored row of the blank is taken as it is
    done = initialise(new, weights(old), heads=HEADS, labels=labels, old_labels=LABELS)
    embed, was = (each["Prediction"].prediction["embed"].weight for each in (new, old))
    torch.testing.assert_close(embed[[0, 2, 3]], was[[3, 1, 4]], rtol=0, atol=0)
    for part in ("weight", "bias"):
        head, trained = (getattr(each["Joint"].joint_net[-1], part) for each in (new, old))
        assert (len(head), len(trained)) == (3 + 1 + 3, 4 + 1 + 3)
        torch.testing.assert_close(head[[0, 2, 3, 4, 5, 6]], trained[[3, 1, 4, 5, 6, 7]], rtol=0, atol=0)
    torch.testing.assert_close(new["Decoder"].out.weight[[0, 2, 3]], old["Decoder"].out.weight[[3, 1, 4]])
    said = str(done)
    assert "Prediction: 4 of 5 tensors loaded, 1 by label (prediction.embed.weight)" in said
    assert "Joint: 4 of 6 tensors loaded, 2 by label (joint_net.1.weight, joint_net.1.bias)" in said
    assert "labels: 2 kept with the blank (c a), 1 new (x), 2 left (space b)" in said


def test_weights_of_an_lstm_with_as_many_rows_as_labels_stay_whole():
    old_labels = [chr(ord("a") + number) for number in range(15)]  # 4 gates x 4 are the rows of 15 labels and a blank
    labels = old_labels[::-1]
    old, new = transducer(old_labels), transducer(labels)
    initialise(new, weights(old), heads=HEADS, labels=labels, old_labels=old_labels)
    key = "prediction.dec_rnn.lstm.weight_hh_l0"
    torch.testing.assert_close(new["Prediction"].state_dict()[key], old["Prediction"].state_dict()[key], rtol=0, atol=0)


def test_every_embedding_of_a_stateless_network_keeps_its_rows():
    options = (StatelessTransducerDecoder, {"context_size": 2})
    old, new = transducer(LABELS, prediction=options), transducer(["b", "x"], prediction=options)
    initialise(new, weights(old), heads=HEADS, labels=["b", "x"], old_labels=LABELS)
    for mine, theirs in zip(
        new["Prediction"].prediction["embeds"], old["Prediction"].prediction["embeds"], strict=True
    ):
        torch.testing.assert_close(mine.weight[[0, 2]], theirs.weight[[2, 4]], rtol=0, atol=0)


def test_big_blanks_are_kept_with_the_blank():
    old = transducer(LABELS, durations=(), big_blank_durations=(2, 4))
    new = transducer(["c"], durations=(), big_blank_durations=(2, 4))
    initialise(new, weights(old), heads=HEADS, labels=["c"], old_labels=LABELS)
    torch.testing.assert_close(new["Joint"].joint_net[-1].bias, old["Joint"].joint_net[-1].bias[[3, 4, 5, 6]])


def test_durations_of_a_transducer_without_are_new_and_said():
    old, new = transducer(LABELS, durations=()), transducer(LABELS, durations=(0, 1, 2))
    before = new["Joint"].joint_net[-1].weight.clone()
    done = initialise(new, weights(old), heads=HEADS, labels=LABELS, old_labels=LABELS)
    head = new["Joint"].joint_net[-1].weight
    torch.testing.assert_close(head[:5], old["Joint"].joint_net[-1].weight, rtol=0, atol=0)  # labels and the blank
    torch.testing.assert_close(head[5:], before[5:], rtol=0, atol=0)
    assert "2 by label (joint_net.1.weight: behind the labels 4 rows, was 1, joint_net.1.bias: " in str(done)


def test_a_blank_without_a_row_in_the_embedding_changes_no_label():
    without = (RNNTDecoder, {"blank_as_pad": False})
    old, new = transducer(LABELS, prediction=without), transducer(["c", "b"])
    done = initialise(new, weights(old), heads=HEADS, labels=["c", "b"], old_labels=LABELS)
    embed, was = (each["Prediction"].prediction["embed"].weight for each in (new, old))
    torch.testing.assert_close(embed, torch.cat([was[[3, 2]], torch.zeros(1, 4)]), rtol=0, atol=0)
    assert "prediction.embed.weight: behind the labels 1 row, was 0" in str(done)


def test_a_transducer_takes_the_encoder_of_a_ctc_model_and_gives_it_back():
    ctc = modules()
    made = transducer(["c", "b"])
    del made["Decoder"]
    done = initialise(made, weights(ctc), heads=HEADS, labels=["c", "b"], old_labels=LABELS)
    torch.testing.assert_close(made["Encoder"].state_dict(), ctc["Encoder"].state_dict(), rtol=0, atol=0)
    assert str(done).splitlines() == [
        "Encoder: all 9 tensors loaded",
        "Prediction: new, all 5 tensors",
        "Joint: new, all 6 tensors",
        "not used: Decoder",
    ]
    hybrid, back = transducer(LABELS), modules()
    done = initialise(back, weights(hybrid), heads=["Decoder"], labels=LABELS, old_labels=LABELS)
    torch.testing.assert_close(back["Decoder"].state_dict(), hybrid["Decoder"].state_dict(), rtol=0, atol=0)
    assert str(done).endswith("Decoder: all 4 tensors loaded\nnot used: Prediction, Joint")
