"""A re-export under NeMo's module name; the code is in ``utils/alive/app_state.py``."""

from nemo_lite.utils.alive.app_state import AppState as AppState
