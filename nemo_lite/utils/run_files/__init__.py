"""What a run writes beside its results: log, records, curves. Where one cannot be written, the run goes on."""

from nemo_lite.utils.run_files.appended_file import AppendedFile as AppendedFile
