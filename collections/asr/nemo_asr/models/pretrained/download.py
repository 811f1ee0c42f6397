"""Where a model's ``.nemo`` file is: on this machine, or published by NVIDIA and downloaded when it is asked for."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nemo_lite import logging
from nemo_lite.core.models import NemoArchive
from nemo_lite.errors import CheckpointError, ModelNotFoundError, did_you_mean
from nemo_lite.utils.digests import digest_of_file
from nemo_lite.utils.files import make_writable_folder, write_atomically

CACHE = "~/.cache/torch/NeMo/NEMO_0.11.0"  # NeMo 0.11's own: what it has downloaded is found
_NGC = "https://api.ngc.nvidia.com/v2/models/nvidia"
_TIMEOUT_SECONDS = 30.0


class Published(NamedTuple):
    """A published model: its class, what it is, and where it is."""

    class_name: str
    description: str
    location: str


PUBLISHED = {
    "QuartzNet15x5-En": Published(
        "QuartzNet",
        "QuartzNet 15x5 for English, trained on several data sets",
        f"{_NGC}/multidataset_quartznet15x5/versions/2/files/QuartzNet15x5-En-Base.nemo",
    ),
    "QuartzNet15x5-Zh": Published(
        "QuartzNet",
        "QuartzNet 15x5 for Mandarin, trained on AISHELL-2",
        f"{_NGC}/aishell2_quartznet15x5/versions/3/files/QuartzNet15x5-Zh-Base.nemo",
    ),
    "JasperNet10x5-En": Published(
        "JasperNet",
        "Jasper 10x5 DR for English, trained on several data sets",
        f"{_NGC}/multidataset_jasper10x5dr/versions/5/files/JasperNet10x5-En-Base.nemo",
    ),
}


def local_file(model_info: str, known: Iterable[str], refresh: bool = False) -> Path:
    """The file of a model; a published one is downloaded unless it has been before.

    Args:
        model_info: a path, or the name of a published model.
        known: the names that may be asked for.
        refresh: download a published one again.

    Raises:
        ModelNotFoundError: there is neither such a file nor such a name, or it cannot be downloaded.
        CheckpointError: what was downloaded is no model.
    """
    path = Path(model_info).expanduser()
    if path.is_file():
        return path
    if model_info not in known:
        got = f'"{model_info}"{did_you_mean(model_info, known)}'
        wanted = f"a .nemo file that is there, or one of {', '.join(known)}"
        raise ModelNotFoundError("there is no such model", place="from_pretrained", got=got, wanted=wanted)
    location = PUBLISHED[model_info].location
    cached = Path(CACHE, location.rpartition("/")[2]).expanduser()
    if refresh or not cached.is_file():
        make_writable_folder(cached.parent)
        logging.info("Downloading %s to %s", location, cached)
        write_atomically(cached, lambda temporary: _download(model_info, location, temporary))
        logging.info("Downloaded %s, SHA-256 %s", cached.name, digest_of_file(cached))
    return cached


def _download(name: str, location: str, target: Path) -> None:
    """Write a published file, and see that it is a whole archive of a model."""
    try:
        # The location is one of PUBLISHED.
        with urllib.request.urlopen(location, timeout=_TIMEOUT_SECONDS) as answer, target.open("wb") as file:  # noqa: S310
            shutil.copyfileobj(answer, file)
            wanted = answer.headers.get("Content-Length")
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        remedy = f"download {location} where there is a network, and give from_pretrained the file's path"
        raise ModelNotFoundError("there is no network to it", place=name, got=str(reason), remedy=remedy) from None
    if wanted is not None and target.stat().st_size != int(wanted):
        got = f"{target.stat().st_size} of {wanted} bytes"
        raise CheckpointError("the download is not complete", place=name, got=got, remedy="try again")
    NemoArchive(target)
