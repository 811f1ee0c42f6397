"""`.nemo` files: tar files, read in memory and written. Nothing is unpacked to the disk.

What their configuration and weights mean is not known here. Two layouts exist: ``module.yaml`` with ``<Class>.pt`` for
each module (NeMo 0.11), and ``model_config.yaml`` with ``model_weights.ckpt`` for all of them (NeMo 1.x).
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from nemo_lite.base.errors import CheckpointError, ModelNotFoundError, did_you_mean
from nemo_lite.base.files import FileKind, open_file, write_atomically
from nemo_lite.base.tar_files import TarLimits, open_tar

SUFFIX = ".nemo"
CONFIG_0, CONFIG_1 = "module.yaml", "model_config.yaml"
_FOLDER = ".nemo_tmp"  # in which NeMo 0.11 packs
# Weights hardly shrink: random ones in float32 1.1 times, those of bfloat16 kept in float32 2.3 times, and 3.1 times
# where half of them are 0. A file that grows more than this is made to fill the memory.
_MOST_GROWTH, _SMALL_BYTES = 4, 64 * 2**20
_MOST_MEMBERS = 10_000
_KIND = FileKind("the .nemo archive", 1 << 40, CheckpointError, "do not use this file")


class ArchiveMember(io.BytesIO):
    """The content of one file of an archive; ``name`` is for messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


class NemoArchive:
    """A ``.nemo`` file, its list of members checked.

    Args:
        path: the file; ``~`` is expanded.

    Attributes:
        path: the file.
        config_name: ``module.yaml`` or ``model_config.yaml``.
        config: the configuration's text.
        names: the files beside the configuration, without their folder.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: it is no tar file, has no configuration or two, a member outside its folder, a link, or a
            member that would fill the memory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        if not os.path.lexists(self.path):
            beside = [file.name for file in self.path.parent.glob("*.nemo")]
            problem = f"no such file{did_you_mean(self.path.name, beside)}"
            raise ModelNotFoundError(problem, place=str(self.path), wanted="a .nemo file")
        with open_file(self.path, _KIND) as file:
            size = os.fstat(file.fileno()).st_size
        limits = TarLimits(_MOST_MEMBERS, max(_MOST_GROWTH * size, _SMALL_BYTES))
        self._open = partial(open_tar, self.path, _KIND, limits)
        with self._open() as tar:
            members = list(tar.members())
        config = self._config_of(members)
        folder = PurePosixPath(config.name).parent
        self.config_name = PurePosixPath(config.name).name
        # With their places, so that a compressed archive need not be gone through to find one.
        self._members = {
            str(PurePosixPath(member.name).relative_to(folder)): member
            for member in members
            if member.isfile() and PurePosixPath(member.name).is_relative_to(folder)
        }
        text = self.read(self.config_name).getvalue()
        try:
            self.config = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{self.config_name} is no text", got=str(error)) from None

    @property
    def names(self) -> list[str]:
        """The files beside the configuration, without their folder."""
        return [name for name in self._members if name != self.config_name]

    def read(self, name: str) -> ArchiveMember:
        """One file's content.

        Raises:
            CheckpointError: there is no such file, or the archive is damaged.
        """
        if name not in self._members:
            raise self._error(
                f"it has no {name}{did_you_mean(name, self.names)}", got=", ".join(self.names) or "nothing"
            )
        with self._open() as tar:
            content = b"".join(tar.chunks(self._members[name]))
        return ArchiveMember(content, f"{self.path}, {name}")

    def _config_of(self, members: list[tarfile.TarInfo]) -> tarfile.TarInfo:
        names = (CONFIG_0, CONFIG_1)
        configs = [member for member in members if PurePosixPath(member.name).name in names and member.isfile()]
        if len(configs) != 1:
            problem = "it has two configurations" if configs else "it has no configuration"
            got = ", ".join(member.name for member in configs or members)
            raise self._error(problem, got=got or "nothing", wanted=f"one {CONFIG_0} or {CONFIG_1}")
        folder = PurePosixPath(configs[0].name).parent
        for member in members:
            name = PurePosixPath(member.name)
            if not (name.is_relative_to(folder) or folder.is_relative_to(name)):
                wanted = f"all in {folder}, where the configuration is"
                raise self._error("a member lies outside its folder", got=member.name, wanted=wanted)
        return configs[0]

    def _error(self, problem: str, *, got: str = "", wanted: str = "", remedy: str = "") -> CheckpointError:
        return CheckpointError(problem, place=str(self.path), got=got, wanted=wanted, remedy=remedy)


def write_archive(path: str | Path, files: Mapping[str, Path | bytes]) -> None:
    """Write a ``.nemo`` file in the layout of NeMo 0.11, atomically.

    Args:
        path: the file.
        files: content, or the file that holds it, by name.

    Raises:
        UsageError: it cannot be written.
    """

    def write(temporary: Path) -> None:
        with tarfile.open(temporary, "w:gz") as tar:
            for name, source in files.items():
                info = tarfile.TarInfo(f"{_FOLDER}/{name}")
                content = source if isinstance(source, bytes) else source.read_bytes()
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))

    write_atomically(path, write)
