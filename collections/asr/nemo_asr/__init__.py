"""nemo_asr: speech recognition with nemo_lite. ``__init__.pyi`` lists the names."""

from nemo_asr.compat.paths import PATHS
from nemo_lite import __version__ as __version__
from nemo_lite.base.aliases import add_paths, lazy_names

add_paths(__name__, PATHS)
__getattr__, __dir__ = lazy_names(__name__)
