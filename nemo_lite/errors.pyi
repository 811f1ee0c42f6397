from nemo_lite.base.errors import *  # noqa: F403  # for type checkers: at run time an entry of compat.paths
