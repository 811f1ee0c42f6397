"""Puts the scripts and configurations of examples/asr into a wheel. All else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = Path("examples/asr")
TARGET = "nemo_asr/examples"


class BuildWithExamples(build_py):
    """Copies the examples beside the modules of nemo_asr; an editable installation finds them in the checkout."""

    def _examples(self) -> "list[Path]":
        return sorted([*SOURCE.glob("*.py"), *SOURCE.glob("configs/*.yaml")])

    def _target_of(self, file: Path) -> Path:
        return Path(self.build_lib, TARGET, file.relative_to(SOURCE))

    def run(self) -> None:
        super().run()
        for file in () if self.editable_mode else self._examples():
            target = self._target_of(file)
            self.mkpath(str(target.parent))
            self.copy_file(str(file), str(target))

    def get_source_files(self) -> "list[str]":
        return [*super().get_source_files(), *map(str, self._examples())]  # a source distribution has them too

    def get_outputs(self, include_bytecode: bool = True) -> "list[str]":
        return [*super().get_outputs(include_bytecode), *(str(self._target_of(file)) for file in self._examples())]


setup(cmdclass={"build_py": BuildWithExamples})
