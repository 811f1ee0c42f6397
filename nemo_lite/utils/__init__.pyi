"""The names of nemo_lite.utils; each is imported when it is asked for."""

import types

from nemo_lite.base import helpers as helpers
from nemo_lite.base.helpers import get_checkpoint_from_dir as get_checkpoint_from_dir
from nemo_lite.base.helpers import rgetattr as rgetattr
from nemo_lite.base.helpers import rsetattr as rsetattr
from nemo_lite.base.nemo_logging import LogMode as LogMode
from nemo_lite.base.nemo_logging import get_logger as get_logger
from nemo_lite.base.nemo_logging import logging as logging
from nemo_lite.base.nemo_logging import logging_mode as logging_mode
from nemo_lite.utils import argparse as argparse
from nemo_lite.utils import exp_logging as exp_logging
from nemo_lite.utils import lr_policies as lr_policies
from nemo_lite.utils.argparse import NemoArgParser as NemoArgParser
from nemo_lite.utils.exp_logging import ExpManager as ExpManager

# NeMo's modules of these names (nemo_lite/base/aliases.py).
app_state: types.ModuleType
decorators: types.ModuleType
misc: types.ModuleType
