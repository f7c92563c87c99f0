"""All exceptions that VirtualFlow raises on purpose.

VirtualFlowError
├── ConfigError             an argument that cannot work
│   └── MappingError        virtual nodes that do not fit the devices
├── LossError               loss_fn or metric_fn returned something unusable
├── NonFiniteError          a loss or a gradient is NaN or infinite
├── HiddenStateError        the result depends on something outside the job's state
├── DeviceMemoryError       a device ran out of memory
├── CheckpointError         a checkpoint that cannot be written or read
├── CollectiveError         workers made different collective calls
├── ReplicaError            workers hold different models
├── PeerLostError           another worker of the job was lost
│   └── CoordinatorLostError    the coordinator was lost
├── ProfileError            a profile that is missing, stale or damaged
├── SolverError             no plan for these devices meets the request
├── TraceError              a trace of jobs that cannot be read
├── PolicyError             a policy returned an impossible decision
├── EventStreamError        an event stream that cannot be read
├── LaunchError             the job could not be started
│   ├── UnreachableError    nobody answers for the job
│   ├── AmbiguousJobError   several jobs have that name
│   └── DamagedError        a file in the job's folder is damaged
├── MessageError            what came over a connection is no message of ours
├── RecordsError            the manager's records can't be read or written
└── ManagerError            the manager refuses, or is not there
    └── UnknownJobError     the manager has no such job
"""


class VirtualFlowError(Exception):
    """The base class: catch this to catch them all."""


class ConfigError(VirtualFlowError):
    """An argument that cannot work."""


class MappingError(ConfigError):
    """Virtual nodes that do not fit the devices."""


class LossError(VirtualFlowError):
    """loss_fn or metric_fn returned something unusable."""


class NonFiniteError(VirtualFlowError):
    """A loss or a gradient is NaN or infinite."""


class HiddenStateError(VirtualFlowError):
    """The result depends on something outside the job's state."""


class DeviceMemoryError(VirtualFlowError):
    """A device ran out of memory."""


class CheckpointError(VirtualFlowError):
    """A checkpoint that cannot be written or read."""


class CollectiveError(VirtualFlowError):
    """Workers made different collective calls."""


class ReplicaError(VirtualFlowError):
    """Workers hold different models."""


class PeerLostError(VirtualFlowError):
    """Another worker of the job was lost."""


class CoordinatorLostError(PeerLostError):
    """The coordinator of the job was lost."""


class ProfileError(VirtualFlowError):
    """A profile that is missing, stale or damaged."""


class SolverError(VirtualFlowError):
    """No plan for these devices meets the request."""


class TraceError(VirtualFlowError):
    """A trace of jobs that cannot be read."""


class PolicyError(VirtualFlowError):
    """A policy returned an impossible decision."""


class EventStreamError(VirtualFlowError):
    """An event stream that cannot be read."""


class LaunchError(VirtualFlowError):
    """The job could not be started."""


class UnreachableError(LaunchError):
    """The coordinator does not answer: the job is starting, has ended, or hangs."""


class AmbiguousJobError(LaunchError):
    """Several jobs have that name, or an id that begins like that."""


class DamagedError(LaunchError):
    """A file in the job's folder is damaged."""


class MessageError(VirtualFlowError):
    """What came over a connection is no message of ours."""


class RecordsError(VirtualFlowError):
    """The manager's records cannot be read or written."""


class ManagerError(VirtualFlowError):
    """The manager refuses, or does not run."""


class UnknownJobError(ManagerError):
    """The manager has no such job."""
