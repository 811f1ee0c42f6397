"""The colours of pictures: muted fills with a darker border of the same hue, for dark text on a light page."""

from nemo_lite.core.show.view import Role

COLOURS = {  # role -> (fill, border)
    Role.DATA: ("#dfebf7", "#4f7cac"),
    Role.PREPROCESSOR: ("#e0f0e6", "#4c8c64"),
    Role.AUGMENTATION: ("#fbf0d5", "#b08a2e"),
    Role.TRAINABLE: ("#ebe4f5", "#7a5ea8"),
    Role.LOSS: ("#f8e1de", "#b65b50"),
    Role.OTHER: ("#eceff2", "#788594"),
}
