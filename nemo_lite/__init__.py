"""nemo_lite: typed neural modules connected into training and evaluation DAGs. ``__init__.pyi`` lists the names.

A script's own parser learns both spellings of ``--local_rank`` when this is imported.
"""

import sys

from nemo_lite.base.aliases import SUBSTITUTES, MissingNames, ModulesAboveAliases, add_paths, lazy_names
from nemo_lite.base.launch import accept_both_spellings
from nemo_lite.compat.paths import PATHS
from nemo_lite.compat.paths import SUBSTITUTES as _SUBSTITUTES
from nemo_lite.package_info import __version__ as __version__

accept_both_spellings()
del accept_both_spellings

SUBSTITUTES.update(_SUBSTITUTES)
add_paths(__name__, PATHS)
sys.meta_path.insert(0, ModulesAboveAliases())
sys.meta_path.append(MissingNames())
del sys
__getattr__, __dir__ = lazy_names(__name__)
