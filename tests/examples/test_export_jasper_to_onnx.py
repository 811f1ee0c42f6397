"""export_jasper_to_onnx.py: NeMo's options, and weights with the names of NeMo 0.8."""

import re

import onnxruntime
import pytest
import torch
from toys.tone_corpus import CONFIG, run_script

import nemo_asr

pytestmark = pytest.mark.slow  # torch's exporter takes its time


@pytest.fixture
def old(tmp_path):
    """A configuration, and weights under the names that NeMo 0.8 gave them."""
    (tmp_path / "tones.yaml").write_text(CONFIG)
    recipe = nemo_asr.load_recipe(tmp_path / "tones.yaml")
    encoder, decoder = recipe.encoder().eval(), recipe.decoder().eval()
    names = {name: re.sub(r"mconv\.(\d+)\.conv", r"conv.\1", name) for name in encoder.state_dict()}
    names |= {name: re.sub("mconv", "conv", new) for name, new in names.items()}
    state = {names[name]: value for name, value in encoder.state_dict().items() if "num_batches" not in name}
    assert "encoder.0.conv.0.weight" in state
    torch.save(state, tmp_path / "encoder.pt")
    torch.save(decoder.state_dict(), tmp_path / "decoder.pt")
    return tmp_path, encoder, decoder


@pytest.mark.long
def test_old_weights_become_two_files_that_run_one_after_the_other(old):
    folder, encoder, decoder = old
    files = [f"--nn_{name}={folder}/{name}.pt" for name in ("encoder", "decoder")]
    files += [f"--onnx_{name}={folder}/{name}.onnx" for name in ("encoder", "decoder")]
    given = [f"--config={folder}/tones.yaml", *files]
    finished = run_script("export_jasper_to_onnx.py", *given, "--pre-v09-model", "--decoder_type", "ctc")
    assert finished.code == 0, finished.err
    assert len(re.findall(r"compared with ONNX Runtime: largest difference \d\.\de-0[5-9]", finished.out)) == 2
    x, length = torch.randn(2, 32, 41), torch.tensor([41, 41])
    wanted = decoder(encoder_output=encoder(audio_signal=x, length=length)[0]).detach()
    values = x.numpy()
    for name in ("encoder", "decoder"):
        session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"))
        (values,) = session.run(None, {session.get_inputs()[0].name: values})
    torch.testing.assert_close(torch.from_numpy(values), wanted, rtol=1e-4, atol=1e-4)
    again = run_script("export_jasper_to_onnx.py", *given)
    assert (again.code, "encoder.onnx: the file exists already" in again.err) == (2, True)
