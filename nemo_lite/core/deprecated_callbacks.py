"""Re-exports under NeMo 0.11's module name; the code is in ``core/callbacks/``."""

from nemo_lite.core.callbacks.action_callback import ActionCallback as ActionCallback
from nemo_lite.core.callbacks.checkpoint import ModuleSaverCallback as ModuleSaverCallback
from nemo_lite.core.callbacks.evaluator import EvaluatorCallback as EvaluatorCallback
from nemo_lite.core.callbacks.loggers import SimpleLossLoggerCallback as SimpleLossLoggerCallback
from nemo_lite.core.callbacks.schedules import UnfreezeCallback as UnfreezeCallback
from nemo_lite.core.callbacks.schedules import ValueSetterCallback as ValueSetterCallback
from nemo_lite.core.callbacks.wandb_loggers import WandbCallback as WandbCallback
