"""nemo_asr: speech recognition with nemo_lite. ``__init__.pyi`` lists the names."""

from nemo_asr.compat import OLD_PATHS
from nemo_lite import __version__ as __version__
from nemo_lite.compat import add_old_paths, lazy_names

add_old_paths("nemo_asr", OLD_PATHS)
__getattr__, __dir__ = lazy_names(__name__)
