"""What processes say to each other. The only package that speaks to ``torch.distributed`` or knows the first rank."""

from nemo_lite.backends.pytorch.distributed.comm import Comm as Comm
from nemo_lite.backends.pytorch.distributed.comm import FakeComm as FakeComm
from nemo_lite.backends.pytorch.distributed.comm import Replica as Replica
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess as SingleProcess
from nemo_lite.backends.pytorch.distributed.exchanging import needs_all_ranks as needs_all_ranks
from nemo_lite.backends.pytorch.distributed.group import Patience as Patience
from nemo_lite.backends.pytorch.distributed.group import ProcessGroup as ProcessGroup
