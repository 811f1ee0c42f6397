"""The names of nemo_lite.core.callbacks; each is imported when it is asked for."""

from nemo_lite.compat.loggers import SimpleLogger as SimpleLogger
from nemo_lite.compat.loggers import SimpleLossLoggerCallback as SimpleLossLoggerCallback
from nemo_lite.compat.loggers import TensorboardLogger as TensorboardLogger
from nemo_lite.compat.loggers import WandbCallback as WandbCallback
from nemo_lite.compat.loggers import WandBLogger as WandBLogger
from nemo_lite.core.callbacks.base import ActionCallback as ActionCallback
from nemo_lite.core.callbacks.base import CallbackList as CallbackList
from nemo_lite.core.callbacks.base import NeMoCallback as NeMoCallback
from nemo_lite.core.callbacks.base import on_action_end as on_action_end
from nemo_lite.core.callbacks.base import on_action_start as on_action_start
from nemo_lite.core.callbacks.base import on_batch_end as on_batch_end
from nemo_lite.core.callbacks.base import on_batch_start as on_batch_start
from nemo_lite.core.callbacks.base import on_epoch_end as on_epoch_end
from nemo_lite.core.callbacks.base import on_epoch_start as on_epoch_start
from nemo_lite.core.callbacks.base import on_evaluation_end as on_evaluation_end
from nemo_lite.core.callbacks.base import on_step_end as on_step_end
from nemo_lite.core.callbacks.base import on_step_start as on_step_start
from nemo_lite.core.callbacks.checkpoint import CheckpointCallback as CheckpointCallback
from nemo_lite.core.callbacks.checkpoint import ModuleSaverCallback as ModuleSaverCallback
from nemo_lite.core.callbacks.early_stopping import EarlyStoppingCallback as EarlyStoppingCallback
from nemo_lite.core.callbacks.evaluator import Collected as Collected
from nemo_lite.core.callbacks.evaluator import EvaluatorCallback as EvaluatorCallback
from nemo_lite.core.callbacks.loss_balance import LossBalanceCallback as LossBalanceCallback
from nemo_lite.core.callbacks.schedules import UnfreezeCallback as UnfreezeCallback
from nemo_lite.core.callbacks.schedules import ValueSetterCallback as ValueSetterCallback
from nemo_lite.core.callbacks.tracking import TrackingCallback as TrackingCallback
