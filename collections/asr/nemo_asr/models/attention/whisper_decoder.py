"""WhisperDecoder: Whisper's decoder, with its prompts and its rules for tokens. The encoder: `models.whisper`.

Outputs are the labels of texts, behind these the end of a text, and then special tokens: the start, languages, tasks,
times. A prompt of special tokens stands before each text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.attention.decoder import AttentionDecoder, DecoderState, Heads, LabelLayers, Layers
from nemo_asr.models.attention.layers import (
    DecoderLayer,
    LabelEmbedding,
    LearnedPositions,
)
from nemo_asr.models.conformer.encoder import Probability
from nemo_asr.models.whisper import check_sizes
from nemo_asr.run.arguments import Channels, Classes, refuse_too_large
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between

AUTO = "auto"
"""The language that stands for any: the decoder finds it itself."""
_PLACE = "WhisperDecoder"
_NEVER = float("-inf")

Token: TypeAlias = Annotated[int, Between(0, 1_000_000)]
Task: TypeAlias = Literal["transcribe", "translate"]


class WhisperDecoder(AttentionDecoder):
    """A Transformer over tokens with trained positions; what it gives is tied to the tokens' vectors.

    It attends to all frames of a window, also to those behind the speech: silence is heard too, as in training.

    Args:
        num_classes: labels; the output behind the last one is the end.
        num_tokens: outputs.
        start_token: with which each prompt begins.
        feat_in: channels of the encoder, and of the decoder.
        decoder_layers: layers.
        decoder_attention_heads: heads of attention.
        decoder_ffn_dim: channels inside of a feed-forward module.
        max_target_positions: most tokens of a text with its prompt: each position has a vector.
        dropout: probability, behind modules.
        attention_dropout: probability, of attention weights.
        activation_dropout: probability, inside of feed-forward modules.
        languages: the token of each language by its code.
        tasks: the tokens of transcribe and translate.
        no_timestamps_token: says in a prompt that the text has no times; the tokens of times are behind it.
        suppress_tokens: are never found.
        begin_suppress_tokens: are never found first.
        max_initial_timestamp_index: the latest time at the beginning, in 0.02 s; null: any.
        prompt_language: of prompts: a code, ``auto`` to find it for each utterance, or null for none.
        task: of prompts: transcribe, translate (into English), or null for none.
        timestamps: find times of parts as well.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: sizes that do not fit, more weights than a model may have, a token that is no output, a language or
            a task that there is not; and of ``forward``, a text that is longer than the positions, or a language that
            is to be found.

    Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022, section 2.3.
    """

    label_tensors = ("layers.embed.token_embedding.weight",)
    hears_padding = True

    def __init__(
        self,
        num_classes: Classes,
        num_tokens: Annotated[int, Between(2, 1_000_000)],
        start_token: Token,
        feat_in: Channels = 384,
        decoder_layers: Layers = 4,
        decoder_attention_heads: Heads = 6,
        decoder_ffn_dim: Channels = 1536,
        max_target_positions: Annotated[int, Between(8, 65_536)] = 448,
        dropout: Probability = 0.0,
        attention_dropout: Probability = 0.0,
        activation_dropout: Probability = 0.0,
        languages: Mapping[str, Token] | None = None,
        tasks: Mapping[str, Token] | None = None,
        no_timestamps_token: Token | None = None,
        suppress_tokens: Sequence[Token] = (),
        begin_suppress_tokens: Sequence[Token] = (),
        max_initial_timestamp_index: Annotated[int, Between(0, 65_536)] | None = None,
        prompt_language: str | None = None,
        task: Task | None = None,
        timestamps: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(feat_in, num_classes, num_tokens, name)
        check_sizes(_PLACE, feat_in, "decoder_attention_heads", decoder_attention_heads)
        of_layers = decoder_layers * feat_in * (8 * feat_in + 2 * decoder_ffn_dim)
        refuse_too_large(_PLACE, feat_in * (num_tokens + max_target_positions) + of_layers)
        self._languages, self._tasks = dict(languages or {}), dict(tasks or {})
        self._start_token, self._no_timestamps = start_token, no_timestamps_token
        self._num_positions, self._latest_start = max_target_positions, max_initial_timestamp_index
        named = [start_token, no_timestamps_token or 0, *self._languages.values(), *self._tasks.values()]
        for token in (num_classes, *named, *suppress_tokens, *begin_suppress_tokens):
            if token >= num_tokens:
                wanted = f"0 to {num_tokens - 1}"
                raise UsageError("a token is no output", place=_PLACE, got=str(token), wanted=wanted)
        decoders = [
            DecoderLayer(
                feat_in,
                decoder_attention_heads,
                decoder_ffn_dim,
                F.gelu,
                dropout=dropout,
                inner_dropout=activation_dropout,
                label_dropout=attention_dropout,
                frame_dropout=attention_dropout,
                key_bias=False,
            )
            for _ in range(decoder_layers)
        ]
        embed = LabelEmbedding(num_tokens, feat_in, LearnedPositions(max_target_positions, feat_in), None, dropout)
        for vectors in (embed.token_embedding, embed.position_embedding):
            nn.init.normal_(vectors.weight, std=0.02)  # type: ignore[arg-type]  # of an embedding
        self.layers = _TiedLayers(embed, decoders, nn.LayerNorm(feat_in), nn.Identity())
        for kind, tokens in (("_never", suppress_tokens), ("_never_first", begin_suppress_tokens)):
            hidden = torch.zeros(num_tokens).index_fill(0, torch.tensor([*tokens], dtype=torch.int64), _NEVER)
            self.register_buffer(kind, hidden, persistent=False)
        # It is 0.00 s; behind it there is a token for each 0.02 s.
        self.first_time = num_tokens if no_timestamps_token is None else no_timestamps_token + 1
        self._can_tell_times = not {*range(self.first_time, num_tokens)} <= {*suppress_tokens}
        self._language: str | None = None
        self._task: str | None = None
        if task is not None:
            self.set_task(task)
        if prompt_language is not None:
            self.set_language(prompt_language)
        self.set_timestamps(timestamps)

    _never: Tensor
    _never_first: Tensor

    @property
    def languages(self) -> list[str]:
        """Those that can be set."""
        return [*([AUTO] if self._languages else []), *self._languages]

    @property
    def tasks(self) -> list[str]:
        """Those that can be set."""
        return [*self._tasks]

    @property
    def language(self) -> str | None:
        """Of prompts: a code, or ``auto``; None: prompts have none."""
        return self._language

    @property
    def task(self) -> str | None:
        """Of prompts; None: they have none."""
        return self._task

    @property
    def prompt_tokens(self) -> dict[str, int]:
        """The tokens of prompts, and the end of texts, by the names that they have in files."""
        named = {"startoftranscript": self._start_token, "endoftext": self.end, **self._languages, **self._tasks}
        no_times = {} if self._no_timestamps is None else {"notimestamps": self._no_timestamps}
        return {f"<|{name}|>": token for name, token in {**named, **no_times}.items()}

    @property
    def language_tokens(self) -> list[int]:
        """Those of all languages."""
        return [*self._languages.values()]

    @property
    def hidden(self) -> tuple[Tensor, Tensor]:
        """(V,), whether each output is never found, and whether it is never found first."""
        return self._never < 0, self._never_first < 0

    def set_language(self, language: str) -> None:
        """The language of all recordings from now on; ``auto``: each has its own, which is found.

        Raises:
            UsageError: the model does not know it, or takes none.
        """
        if not self._languages:
            problem, remedy = "the model takes no language", "leave it out"
            raise UsageError(problem, place=_PLACE, got=language, remedy=remedy)
        if language not in self.languages:
            problem, wanted = "the model does not know this language", f"one of {', '.join(self.languages)}"
            raise UsageError(problem, place=_PLACE, got=language, wanted=wanted)
        self._language = language
        if language != AUTO and self._task is None and "transcribe" in self._tasks:
            self._task = "transcribe"
        self._set_prompt()

    def set_task(self, task: str) -> None:
        """What is written from now on: ``transcribe``, what is said in its language; ``translate``, in English.

        Raises:
            UsageError: the model has no such task.
        """
        if task not in self._tasks:
            problem, wanted = "the model has no such task", " or ".join(self._tasks) or "none: it has no tasks"
            raise UsageError(problem, place=_PLACE, got=task, wanted=wanted)
        self._task = task
        self._set_prompt()

    def set_timestamps(self, timestamps: bool) -> None:
        """Whether times of parts are found from now on.

        Raises:
            UsageError: the model has no tokens of times, or suppresses all of them.
        """
        if timestamps and not self._can_tell_times:
            problem, remedy = "the model finds no times", "leave it out"
            raise UsageError(problem, place=_PLACE, got="timestamps", remedy=remedy)
        self.times = range(self.first_time, self.num_outputs) if timestamps else range(0)
        self._set_prompt()

    def _set_prompt(self) -> None:
        """In the place of a language that is to be found stands the start."""
        language = [] if self._language is None else [self._languages.get(self._language, self._start_token)]
        task = [] if self._task is None else [self._tasks[self._task]]
        no_times = [] if self._no_timestamps is None or self.times else [self._no_timestamps]
        self.start = (self._start_token, *language, *task, *no_times)
        self.most_labels = self._num_positions - len(self.start)

    def forward(self, encoded: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor) -> Tensor:
        """See `AttentionDecoder`: each text behind the prompt.

        Raises:
            UsageError: a text is longer than the positions, or its language is to be found.
        """
        if self._language == AUTO:
            problem, remedy = "training needs the language of the texts", f"say it: --set {_PLACE}.prompt_language=CODE"
            raise UsageError(problem, place=_PLACE, got=AUTO, remedy=remedy)
        most = self._num_positions - len(self.start)
        if labels.shape[1] > most:
            wanted, remedy = f"at most {most}", "leave out utterances with longer texts"
            got = f"{labels.shape[1]} labels"
            raise UsageError("a text is longer than the positions", place=_PLACE, got=got, wanted=wanted, remedy=remedy)
        start = labels.new_tensor(self.start, dtype=torch.int64).expand(len(labels), -1)
        inputs = torch.cat([start, labels.long().clamp(0, self.num_outputs - 1)], 1)
        log_probs: Tensor = self.layers(encoded, inputs, _all_frames(encoded))
        return log_probs[:, len(self.start) - 1 :]

    def begin(self, encoded: Tensor, num_frames: Tensor, width: int = 1) -> DecoderState:
        """See `AttentionDecoder`. Of each hypothesis it remembers its prompt and the last labels too."""
        state = self.layers.begin(encoded, _all_frames(encoded), width)
        prompts = torch.tensor(self.start, device=encoded.device).repeat(len(encoded) * width, 1)
        if self._language == AUTO:
            log_probs, _ = self.layers.step(prompts[:, 0].view(-1, width), state)
            languages = torch.tensor(self.language_tokens, device=encoded.device)
            prompts[:, 1] = languages[log_probs.flatten(0, 1)[:, languages].argmax(1)]
        said = prompts.new_full((len(prompts), 3), self.first_time - 1)
        return state._replace(extra=(prompts, said))

    def step(self, labels: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """See `AttentionDecoder`. Where the prompt has a token, that one is taken; what rules forbid is never found."""
        (prompts, said), position = state.extra, state.num_labels
        inputs, length = labels.flatten(), prompts.shape[1]
        if position < length:
            inputs = prompts[:, position]
        else:
            last_time = torch.where(inputs >= self.first_time, inputs, said[:, 2])
            said = torch.stack([inputs, said[:, 0], last_time], 1)
        log_probs, after = self.layers.step(inputs.view(labels.shape), state)
        allowed = self._allowed(log_probs.flatten(0, 1), said, position + 1 - length)
        return allowed.view(log_probs.shape), after._replace(extra=(prompts, said))

    def _allowed(self, log_probs: Tensor, said: Tensor, number: int) -> Tensor:
        """Log-probabilities (N, V) of what may come behind ``number`` labels of a text.

        Args:
            log_probs: (N, V).
            said: (N, 3) the last label, the one before, and the last time.
            number: of labels; below 0 in the prompt.
        """
        if number < 0:
            return log_probs
        if number >= self._num_positions - len(self.start):
            return torch.full_like(log_probs, _NEVER).index_fill(1, torch.tensor(self.end, device=said.device), 0.0)
        scores = log_probs + self._never
        if number == 0:
            scores = scores + self._never_first
        if self.times:
            scores = self._with_times(scores, said, number)
        return scores.log_softmax(-1)

    def _with_times(self, scores: Tensor, said: Tensor, number: int) -> Tensor:
        """The rules of times.

        A text begins with a time. Times come in pairs, the end of a part and the beginning of the next one, or alone in
        front of the end; none is before another one, and a part is not empty. Where all times together are more
        probable than any other output, one of them comes.
        """
        first, outputs = self.first_time, torch.arange(self.num_outputs, device=scores.device)
        is_time, (last, before, last_time) = outputs >= first, said.unsqueeze(2).unbind(1)
        was_time = (last >= first) & (number > 0)
        ends_part = was_time & (before < first) & (number > 1)
        hidden = (outputs == self._no_timestamps) | (is_time & (outputs < last_time + 1 - ends_part.long()))
        hidden = hidden | torch.where(ends_part, outputs < self.end, was_time & is_time)
        if number == 0:
            latest = self.num_outputs if self._latest_start is None else first + self._latest_start
            hidden = hidden | ~is_time | (outputs > latest)
        log_probs = scores.masked_fill(hidden, _NEVER).log_softmax(-1)
        of_times = log_probs[:, first:].logsumexp(1, keepdim=True)
        of_others = log_probs[:, :first].amax(1, keepdim=True)
        return log_probs.masked_fill((of_times > of_others) & ~is_time, _NEVER)


def _all_frames(encoded: Tensor) -> Tensor:
    """(B,): all frames of (B, D, T) count."""
    return torch.full((len(encoded),), encoded.shape[2], device=encoded.device)


class _TiedLayers(LabelLayers):
    """Layers whose outputs are scored by the vectors of the tokens."""

    def _log_probs(self, x: Tensor) -> Tensor:
        weight = self.embed.token_embedding.weight  # type: ignore[union-attr]  # a `LabelEmbedding`
        return F.log_softmax(F.linear(self.after_norm(x), weight.to(x.dtype)).float(), -1)  # type: ignore[arg-type]
