from nemo_asr.run.audio.reading import Audio as Audio
from nemo_asr.run.audio.reading import read_audio as read_audio
from nemo_asr.run.audio.reading import trimmed as trimmed
