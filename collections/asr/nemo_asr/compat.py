"""Old import paths of this collection: NeMo's, and those of earlier versions."""

from __future__ import annotations

# Module of today -> old paths, all below nemo_asr.
OLD_PATHS = {
    "": "losses",
    "audio.augmentation": """
        audio.augmentor audio.featurizer audio.perturbation audio.recordings audio.time_stretch audio_preprocessing
        audio.segment parts.perturb parts.segment
    """,
    "audio.reading": "audio.decoding audio.flac_header audio.headers audio.recordings",
    "corpora.synth": "corpora.espeak corpora.sentences",
    "corpora.writing": "corpora.archives",
    "data.check": """
        data.check.examined data.check.findings data.check.leaks data.check.picture data.check.statistics
        data.check.told
    """,
    "data.kaldi": "data.kaldi.data_layer data.kaldi.folder data.kaldi.matrices data_layer",
    "data.labelled": "data.labelled.classes data.labelled.speech_label data_layer",
    "data.manifest": "data.manifest_lines",
    "data.speech_data_layer": "data.audio_to_text data.file_durations data.preflight data.transcripts_file data_layer",
    "data.tarred": """
        data.tarred.data_layer data.tarred.making data.tarred.matching data.tarred.members data.tarred.shards
        data.tarred.utterances data_layer
    """,
    "data.utterances": "data.audio_files data.copied data.dataset data.file_spans data.iteration",
    "decoding.beam_search": "beam_search_decoder decoding.weight_search",
    "decoding.greedy": "decoding.texts greedy_ctc_decoder helpers",
    "decoding.ngram": """
        decoding.language_model decoding.ngram.arpa decoding.ngram.counts decoding.ngram.kenlm_model
        decoding.ngram.loading decoding.ngram.ngram_model decoding.ngram.smoothing decoding.ngram.tables
    """,
    "decoding.prefix_beam_search": "decoding.frame_labels decoding.text_search",
    "decoding.words": "decoding.lexicon decoding.spelling decoding.word_scores",
    "features": "audio_preprocessing",
    "features.fbank": "fbank",
    "features.filterbank": "features.signal_processing",
    "features.framing": "features.signal_processing",
    "features.normalization": "features.signal_processing",
    "features.preprocessors": "features.first_generation",
    "features.spectra": "features.signal_processing",
    "models.contextnet": "contextnet jasper",
    "models.jasper": """
        jasper models.convolution models.frames models.jasper_blocks models.jasper_spec models.squeeze_excite
    """,
    "models.losses": "losses models.intermediate",
    "models.nemo_files": "models.pretrained.layouts",
    "models.pretrained": "models.asrconvctcmodel models.pretrained.conv_ctc models.pretrained.download",
    "models.speaker": "jasper",
    "options": "option_pages search_options set_tags",
    "parts": """
        parts.cleaners parts.collections parts.dataset parts.features parts.jasper parts.manifest parts.parsers
        parts.spectr_augment
    """,
    "scoring.callbacks": "helpers scoring.asr_callbacks scoring.classification_callbacks scoring.evaluated",
    "scoring.rates": """
        helpers metrics scoring.bootstrap scoring.breakdown scoring.classification scoring.differences
        scoring.error_counts scoring.student_t scoring.verification
    """,
    "scoring.report.charts": "scoring.report.media scoring.report.reliability_charts",
    "scoring.report.page": "scoring.report.comparison scoring.report.seed_table",
    "scoring.report.records": """
        scoring.report.content scoring.report.run_folder scoring.report.scored_sets scoring.report.set_scores
        scoring.report.transcripts
    """,
    "tasks.connection_check": "recipe.connection_check",
    "tasks.families": "recipe.classifier recipe.wiring tasks.classification tasks.ctc",
    "tasks.fitting": "recipe.feasibility recipe.misfits",
    "tasks.known_modules": "known_modules",
    "tasks.recipe": "recipe recipe.class_list recipe.recipe",
    "tasks.registry": "recipe.registry recipe.sections tasks.sections",
    "text.english": """
        text.english.dates text.english.names text.english.normalize text.english.numbers text.english.quantities
        text.english.rules text.english.units
    """,
    "text.labels": "text.forms text.languages text.symbols",
    "text.numbers": "text.chinese_numbers text.number_words text.spoken_numbers",
    "text.subwords": "text.subwords.model_file text.subwords.training text.subwords.vocabulary",
    "argparse": "fine_tuning_options regularization_options training_options",
    "training": "tracking",
    "transcribe.best": "trained.averaged trained.best",
    "transcribe.engine": """
        transcription transcription.alignment transcription.recordings transcription.transcribe transcription.windows
    """,
    "transcribe.fine_tuning": "trained.fine_tuning trained.initialise trained.tasks transcribe.initialise",
    "transcribe.inputs": "transcription transcription.inputs transcription.recording",
    "transcribe.model": "trained trained.card trained.classifier_model trained.folder trained.model transcribe.folder",
    "transcribe.onnx_export": "trained.onnx_export",
    "transcribe.onnx_model": "transcription.onnx_model",
    "transcribe.texts": """
        trained.calibrating trained.ngram_training transcribe.calibrating transcribe.ngram_training
    """,
    "transcribe.transcript": "transcription transcription.formats transcription.transcript transcription.viterbi",
}
# An installation in place whose metadata are older than the sources has its subcommands there.
_SUBCOMMANDS = "data demo eval migrate models reference report train transcribe"
OLD_PATHS |= {"cli": "commands"} | {f"cli.{name}": f"commands.{name}" for name in _SUBCOMMANDS.split()}
OLD_PATHS |= {
    "cli.models:export": "cli.export commands.export",
    "cli.report:compare": "cli.compare commands.compare",
    "cli.train:plan": "cli.plan commands.plan",
    "shipped:examples": "cli.examples commands.examples",
}
