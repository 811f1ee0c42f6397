"""``python -m nemo_lite`` is the command ``nemo-lite``."""

import sys

from nemo_lite.base.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
