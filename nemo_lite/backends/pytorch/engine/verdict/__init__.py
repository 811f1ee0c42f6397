"""The verdict on a step: whether it counts, and which of its items do not."""

from nemo_lite.backends.pytorch.engine.verdict.item_losses import StepItems as StepItems
from nemo_lite.backends.pytorch.engine.verdict.skipped_steps import SkippedSteps as SkippedSteps
from nemo_lite.backends.pytorch.engine.verdict.verdict import Computed as Computed
from nemo_lite.backends.pytorch.engine.verdict.verdict import DeviceVerdict as DeviceVerdict
from nemo_lite.backends.pytorch.engine.verdict.verdict import Verdict as Verdict
from nemo_lite.backends.pytorch.engine.verdict.verdict import verdict_on as verdict_on
