"""The place where NeMo 0.11 keeps these names: re-exports, nothing else."""

from nemo_lite.core.callbacks.action_callback import ActionCallback as ActionCallback
from nemo_lite.core.callbacks.evaluator import EvaluatorCallback as EvaluatorCallback
from nemo_lite.core.callbacks.older_callbacks import ModuleSaverCallback as ModuleSaverCallback
from nemo_lite.core.callbacks.older_callbacks import SimpleLossLoggerCallback as SimpleLossLoggerCallback
from nemo_lite.core.callbacks.older_callbacks import UnfreezeCallback as UnfreezeCallback
from nemo_lite.core.callbacks.older_callbacks import WandbCallback as WandbCallback
from nemo_lite.core.callbacks.value_setter import ValueSetterCallback as ValueSetterCallback
