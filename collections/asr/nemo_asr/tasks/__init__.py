"""What a model learns: its YAML, the modules and their roles, how they are connected. The import registers them."""

from nemo_asr.tasks import known_modules as known_modules
