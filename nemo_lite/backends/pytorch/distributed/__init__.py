"""Everything between ranks: collectives, replicas, sharding, hang reports. Only here is ``torch.distributed`` used.

Other packages import from here, not from the files.
"""

from nemo_lite.backends.pytorch.distributed.batchnorm import adding_nothing as adding_nothing
from nemo_lite.backends.pytorch.distributed.batchnorm import is_sharded as is_sharded
from nemo_lite.backends.pytorch.distributed.batchnorm import is_synced as is_synced
from nemo_lite.backends.pytorch.distributed.batchnorm import needs_all_ranks as needs_all_ranks
from nemo_lite.backends.pytorch.distributed.comm import PLAIN_REPLICA as PLAIN_REPLICA
from nemo_lite.backends.pytorch.distributed.comm import Comm as Comm
from nemo_lite.backends.pytorch.distributed.comm import Replica as Replica
from nemo_lite.backends.pytorch.distributed.comm import ReplicaOptions as ReplicaOptions
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess as SingleProcess
from nemo_lite.backends.pytorch.distributed.contract import Agreement as Agreement
from nemo_lite.backends.pytorch.distributed.contract import RunContract as RunContract
from nemo_lite.backends.pytorch.distributed.contract import changes as changes
from nemo_lite.backends.pytorch.distributed.contract import effective_batch as effective_batch
from nemo_lite.backends.pytorch.distributed.contract import inference_arguments as inference_arguments
from nemo_lite.backends.pytorch.distributed.contract import training_arguments as training_arguments
from nemo_lite.backends.pytorch.distributed.copies import Copied as Copied
from nemo_lite.backends.pytorch.distributed.copies import CopyComparison as CopyComparison
from nemo_lite.backends.pytorch.distributed.drift import refuse_drifted_weights as refuse_drifted_weights
from nemo_lite.backends.pytorch.distributed.group import Patience as Patience
from nemo_lite.backends.pytorch.distributed.group import ProcessGroup as ProcessGroup
from nemo_lite.backends.pytorch.distributed.health import BACKWARD as BACKWARD
from nemo_lite.backends.pytorch.distributed.health import COMPILING as COMPILING
from nemo_lite.backends.pytorch.distributed.health import EVALUATION as EVALUATION
from nemo_lite.backends.pytorch.distributed.health import READING_CHECKPOINT as READING_CHECKPOINT
from nemo_lite.backends.pytorch.distributed.health import WAITING_FOR_DATA as WAITING_FOR_DATA
from nemo_lite.backends.pytorch.distributed.health import WRITING_CHECKPOINT as WRITING_CHECKPOINT
from nemo_lite.backends.pytorch.distributed.health import Activity as Activity
from nemo_lite.backends.pytorch.distributed.health import note_write as note_write
from nemo_lite.backends.pytorch.distributed.pieces import Piece as Piece
from nemo_lite.backends.pytorch.distributed.pieces import divided_as as divided_as
from nemo_lite.backends.pytorch.distributed.pieces import is_divided as is_divided
from nemo_lite.backends.pytorch.distributed.pieces import piece_of as piece_of
from nemo_lite.backends.pytorch.distributed.rendezvous import announce_failures as announce_failures
