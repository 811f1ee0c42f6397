"""What is known of a configuration before its recipe is made: its task, and the classes that its data decide."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from nemo_asr.data.labelled.classes import classes_of
from nemo_asr.data.manifest import Manifest, ManifestPaths
from nemo_asr.recipe.recipe import Recipe, load_recipe
from nemo_asr.recipe.sections import Parts
from nemo_asr.shipped import config_path
from nemo_lite.config import Config, load_config


def task_of(path: str | os.PathLike[str]) -> str:
    """``transcription`` or ``classification``: what the configuration in this file is for.

    Raises:
        ConfigError: the file cannot be read.
    """
    return Parts(load_config(config_path(path))).task


def load_class_recipe(path: str | os.PathLike[str], manifest: ManifestPaths, overrides: Sequence[str] = ()) -> Recipe:
    """As ``load_recipe``; where the file has no labels, they are the classes of a manifest, sorted as texts.

    Args:
        path: the file, or the name of a configuration that comes with the package.
        manifest: the training set.
        overrides: values that win over the file's, each ``KEY=VALUE``.

    Raises:
        ConfigError, DataError: what is wrong with the file, or with the manifest.
    """
    given = [setting.split("=")[0] for setting in overrides]
    if "labels" not in given and not _has_labels(load_config(config_path(path))):
        found = sorted(set(classes_of(Manifest.open(manifest, lenient=True))))
        overrides = [*overrides, f"labels={json.dumps(found, ensure_ascii=False)}"]
    return load_recipe(path, overrides)


def _has_labels(config: Config) -> bool:
    sections = [config, *(value for value in config.values() if isinstance(value, Config))]
    return any("labels" in section or _has_labels_inside(section) for section in sections)


def _has_labels_inside(section: Config) -> bool:
    params = section.get("init_params")
    return isinstance(params, Config) and "labels" in params
