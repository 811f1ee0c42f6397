"""nemo_lite: typed neural modules connected into training and evaluation DAGs. ``__init__.pyi`` lists the names.

A script's own parser learns both spellings of ``--local_rank`` when this is imported.
"""

import sys

from nemo_lite.compat import OLD_PATHS, MissingNames, ModulesAboveOldPaths, add_old_paths, lazy_names
from nemo_lite.package_info import __version__ as __version__
from nemo_lite.utils.launch import accept_both_spellings

accept_both_spellings()
del accept_both_spellings

for _package, _table in OLD_PATHS.items():
    add_old_paths(_package, _table)
sys.meta_path.insert(0, ModulesAboveOldPaths())
sys.meta_path.append(MissingNames())
del sys
__getattr__, __dir__ = lazy_names(__name__)
