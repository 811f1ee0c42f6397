"""NeMo's first example: re-exports, nothing else."""

from nemo_lite.backends.pytorch.tutorials import toys as toys
from nemo_lite.backends.pytorch.tutorials.toys import CrossEntropyLoss as CrossEntropyLoss
from nemo_lite.backends.pytorch.tutorials.toys import L1Loss as L1Loss
from nemo_lite.backends.pytorch.tutorials.toys import MSELoss as MSELoss
from nemo_lite.backends.pytorch.tutorials.toys import RealFunctionDataLayer as RealFunctionDataLayer
from nemo_lite.backends.pytorch.tutorials.toys import TaylorNet as TaylorNet
from nemo_lite.utils.substitutes import tell_of_missing

__getattr__ = tell_of_missing("nemo.backends.pytorch.tutorials", __name__)
