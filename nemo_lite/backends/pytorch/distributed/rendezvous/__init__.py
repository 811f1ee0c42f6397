"""Rendezvous: how the ranks of a run find each other. Import from this package, not from its files."""

from nemo_lite.backends.pytorch.distributed.rendezvous.failures import announce_failures as announce_failures
from nemo_lite.backends.pytorch.distributed.rendezvous.failures import announce_failures_by as announce_failures_by
from nemo_lite.backends.pytorch.distributed.rendezvous.meeting import Meeting as Meeting
from nemo_lite.backends.pytorch.distributed.rendezvous.meeting import meet as meet
from nemo_lite.backends.pytorch.distributed.rendezvous.members import Member as Member
from nemo_lite.backends.pytorch.distributed.rendezvous.notes import Notes as Notes
from nemo_lite.backends.pytorch.distributed.rendezvous.run_identity import options_in as options_in
