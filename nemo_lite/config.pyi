from nemo_lite.base.config import *  # noqa: F403  # for type checkers: at run time an entry of compat.paths
