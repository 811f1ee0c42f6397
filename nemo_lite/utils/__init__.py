"""What NeMo keeps under ``nemo.utils``: re-exports, nothing else. No torch is imported from here."""

from nemo_lite.utils import argparse as argparse
from nemo_lite.utils import decorators as decorators
from nemo_lite.utils import exp_logging as exp_logging
from nemo_lite.utils import helpers as helpers
from nemo_lite.utils import lr_policies as lr_policies
from nemo_lite.utils import misc as misc
from nemo_lite.utils.argparse import NemoArgParser as NemoArgParser
from nemo_lite.utils.exp_logging import ExpManager as ExpManager
from nemo_lite.utils.nemo_logging import LogMode as LogMode
from nemo_lite.utils.nemo_logging import logging as logging
