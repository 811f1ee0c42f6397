"""Tar shards of any content, and a small set of recordings in some."""

import io
import tarfile

from nemo_asr.data.made_shards import make_shards
from toys.manifests import make_set


def write_shard(path, *members, kind=tarfile.USTAR_FORMAT):
    """A tar file of these (name, content) in order."""
    with tarfile.open(path, "w", format=kind) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return str(path)


def make_tarred_set(folder, num_items=12, num_shards=3, **options):
    """The utterances of `make_set` in shards: their pattern and their manifest."""
    manifest = folder / make_set(folder, num_items)
    made = make_shards(str(manifest), folder / "tarred", num_shards=num_shards, **options)
    return f"{folder}/tarred/audio_{{0..{num_shards - 1}}}.tar", str(made.manifest)
