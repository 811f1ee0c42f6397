"""What of NeMo 0.x is not here, and what takes its place: for errors, ``nemo-lite migrate`` and a table in the docs."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable

_ATTENTION = "CTC (JasperDecoderForCTC, CTCLossNM); attention models are not here"
_LOOP = "factory.train, infer and callbacks; state['tensors'].get_tensor(name) in a callback"
_TORCHVISION = "torchvision's own data sets behind a DataLayerNM of yours"
_DEVICE = "factory.device"
_OTHER_COLLECTION = "modules of your own; only speech recognition is here"

# By NeMo's place: name -> substitute.
SUBSTITUTES: dict[str, dict[str, str]] = {
    "nemo.core": {
        "InferenceCallback": "factory.infer(tensors)",
        "Actions": "nemo_lite.backends.pytorch.PtActions",
        "TrainingState": _LOOP,
        "topological_sort_from_leaves": "nemo_lite.Dag(tensors).nodes",
        "actions": _LOOP,
    },
    "nemo.backends.pytorch": {
        "torchvision": _TORCHVISION,
        "DecoderRNN": _ATTENTION,
        "EncoderRNN": _ATTENTION,
        "GreedySearch": _ATTENTION,
        "BeamSearch": _ATTENTION,
        "Attention": _ATTENTION,
    },
    "nemo.backends.pytorch.tutorials": {"chatbot": _ATTENTION},
    "nemo.utils": {
        "get_device": _DEVICE,
        "get_cuda_device": _DEVICE,
        "maybe_download_from_cloud": "nemo-lite models convert, or ASRConvCTCModel.from_pretrained",
        "env_var_parsing": "os.environ",
        "configuration_parsing": "nemo_lite.config.load_config",
    },
    "nemo.collections": dict.fromkeys(("nlp", "tts", "cv", "simple_gan"), _OTHER_COLLECTION),
    "nemo.collections.asr": {
        "JasperRNNConnector": _ATTENTION,
        "TranscriptDataLayer": _ATTENTION,
        "las": _ATTENTION,
    },
}


def substitute_of(dotted: str) -> str:
    """What takes the place of ``nemo.core.TrainingState``, or of what is in it; an empty text where it is here."""
    for place, names in SUBSTITUTES.items():
        name = dotted.removeprefix(f"{place}.").partition(".")[0] if dotted.startswith(f"{place}.") else ""
        if name in names:
            return names[name]
    return ""


def tell_of_missing(place: str, module: str) -> Callable[[str], object]:
    """A ``__getattr__`` for a package: the error for a missing name of NeMo says what takes its place.

    Args:
        place: the package's name in NeMo.
        module: its name here.
    """

    def missing(name: str) -> object:
        if old_path := sys.modules.get(f"{module}.{name}"):  # entered by nemo_lite/compat.py
            return old_path
        substitute = SUBSTITUTES.get(place, {}).get(name)
        if substitute is None:
            raise AttributeError(f"module '{module}' has no attribute '{name}'", name=name, obj=sys.modules.get(module))
        text = f"{place}.{name} is not in {module}; instead: {substitute}"
        # For `from package import name` Python would replace an AttributeError by one that does not say this.
        frame = sys._getframe(1)
        if frame.f_lasti >= 0 and dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM":
            raise ImportError(text, name=name)
        raise AttributeError(text, name=name, obj=sys.modules.get(module))

    return missing
