"""What a data layer gives to the engine, and the parts that data layers are made of. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.data.loaders import Batch as Batch
from nemo_lite.backends.pytorch.data.loaders import BatchLoader as BatchLoader
from nemo_lite.backends.pytorch.data.loaders import DatasetLoader as DatasetLoader
from nemo_lite.backends.pytorch.data.loaders import IteratorLoader as IteratorLoader
from nemo_lite.backends.pytorch.data.loaders import as_values as as_values
from nemo_lite.backends.pytorch.data.order import Leftover as Leftover
from nemo_lite.backends.pytorch.data.order import Plan as Plan
from nemo_lite.backends.pytorch.data.order import Rows as Rows
from nemo_lite.backends.pytorch.data.order import Shard as Shard
from nemo_lite.backends.pytorch.data.order import evaluation_plan as evaluation_plan
from nemo_lite.core.run_options import Uneven as Uneven
