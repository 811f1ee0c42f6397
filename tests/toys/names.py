"""Names of modules in one test that stands for several programs."""

from nemo_lite.core.app_state import AppState


def forget_names() -> None:
    """From here on no name is taken, as in a program that starts anew."""
    AppState().modules.clear()
