"""Reads YAML files into checked values; an error lists all problems, each with file, line and column.

``check_call`` reads the signatures of the callables that the keys are for, so this package has no schema and no torch.
"""

from nemo_lite.config.checking import build as build
from nemo_lite.config.checking import check_call as check_call
from nemo_lite.config.checking import raise_if as raise_if
from nemo_lite.config.checking import unknown_key as unknown_key
from nemo_lite.config.loading import MAX_BYTES as MAX_BYTES
from nemo_lite.config.loading import MAX_DEPTH as MAX_DEPTH
from nemo_lite.config.loading import MAX_VALUES as MAX_VALUES
from nemo_lite.config.loading import load_config as load_config
from nemo_lite.config.loading import parse_config as parse_config
from nemo_lite.config.overriding import override as override
from nemo_lite.config.values import Config as Config
from nemo_lite.config.values import shown as shown
