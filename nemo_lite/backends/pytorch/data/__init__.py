"""What a data layer hands to the engine, and which items make which batch. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.data.loaders import Batch as Batch
from nemo_lite.backends.pytorch.data.loaders import BatchLoader as BatchLoader
from nemo_lite.backends.pytorch.data.loaders import DatasetLoader as DatasetLoader
from nemo_lite.backends.pytorch.data.loaders import IteratorLoader as IteratorLoader
from nemo_lite.backends.pytorch.data.loaders import as_values as as_values
from nemo_lite.backends.pytorch.data.loaders import leftover_of as leftover_of
from nemo_lite.backends.pytorch.data.loaders import length_of as length_of
from nemo_lite.backends.pytorch.data.loaders import settle as settle
from nemo_lite.backends.pytorch.data.order import EpochOrder as EpochOrder
from nemo_lite.backends.pytorch.data.order import Leftover as Leftover
from nemo_lite.backends.pytorch.data.order import Plan as Plan
from nemo_lite.backends.pytorch.data.order import Rows as Rows
from nemo_lite.backends.pytorch.data.order import Shard as Shard
from nemo_lite.backends.pytorch.data.order import Uneven as Uneven
from nemo_lite.backends.pytorch.data.order import dealt as dealt
from nemo_lite.backends.pytorch.data.order import evaluation_plan as evaluation_plan
from nemo_lite.backends.pytorch.data.order import in_steps as in_steps
from nemo_lite.backends.pytorch.data.order import items_of_a_step as items_of_a_step
from nemo_lite.backends.pytorch.data.seeds import Asking as Asking
from nemo_lite.backends.pytorch.data.seeds import Seeded as Seeded
from nemo_lite.backends.pytorch.distributed import Comm as Comm
