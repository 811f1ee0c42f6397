"""Everything between ranks: collectives, replicas, sharding, hang reports. Only here is ``torch.distributed`` used."""

from nemo_lite.backends.pytorch.distributed.batchnorm import needs_all_ranks as needs_all_ranks
from nemo_lite.backends.pytorch.distributed.comm import Comm as Comm
from nemo_lite.backends.pytorch.distributed.comm import Replica as Replica
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess as SingleProcess
from nemo_lite.backends.pytorch.distributed.group import Patience as Patience
from nemo_lite.backends.pytorch.distributed.group import ProcessGroup as ProcessGroup
