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
├── SentinelError           devices compute different things, and which one is right can't be told
├── StateLostError          no worker holds some part of the job's state any more
├── PeerLostError           another worker of the job was lost
│   └── CoordinatorLostError    the coordinator was lost
├── ProfileError            a profile that is missing, stale or damaged
├── SolverError             no plan for these devices meets the request
├── TraceError              a trace of jobs that cannot be read
├── PolicyError             a policy returned an impossible decision
├── EventStreamError        an event stream that cannot be read
├── LaunchError             the job could not be started
│   ├── UnreachableError    the job's coordinator does not answer
│   ├── AmbiguousJobError   several jobs have that name
│   ├── DamagedError        a file in the job's folder is damaged
│   ├── NoTrainerError      the script trains without a Trainer, so nothing joins its devices
│   ├── NotReadyError       no worker can be started now; try again soon
│   ├── ServerLostError     the fork server has ended
│   └── ServerSilentError   the fork server does not answer
├── MessageError            a connection has sent something that is not a VirtualFlow message
├── SelfTestError           ``vf selftest`` could not confirm a promise
│   ├── BrokenPromiseError  a promise was broken
│   └── NotHereError        it can't be checked on this machine
├── RecordsError            the manager's records can't be read or written
└── ManagerError            the manager refuses, or does not run
    └── UnknownJobError     the manager has no such job

Signals are not errors, and no caller of this library sees them. They are defined where they are raised:

- Leave: this worker leaves the job
- SumsLost: the sums of a step were lost with a worker
- ChangedFile: a file is no longer what the job has read
- TooManyGrids: there are more grids of cells than a search looks at
- ScriptDone: a profile is complete, or a step replayed, so the script can end here
- InterruptedMeasurement: Ctrl-C or a signal has interrupted a measurement
- InterruptedReplay: Ctrl-C or a signal has interrupted the replay of a step
- Interrupted: Ctrl-C, SIGTERM or a closed terminal
- NotPlainError: a dataset holds something that another process can't have a copy of
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


class SentinelError(VirtualFlowError):
    """Devices compute different things, and which one is right can't be told."""


class StateLostError(VirtualFlowError):
    """No worker holds some part of the job's state any more."""


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


class NoTrainerError(LaunchError):
    """The script has ended on several devices, and has made no Trainer that joins them."""


class NotReadyError(LaunchError):
    """No worker can be started now; try again soon."""


class ServerLostError(LaunchError):
    """The process that workers are forked from has ended."""


class ServerSilentError(LaunchError):
    """The process that workers are forked from does not answer: it is stopped, or hangs."""


class MessageError(VirtualFlowError):
    """A connection has sent something that is not a VirtualFlow message."""


class SelfTestError(VirtualFlowError):
    """``vf selftest`` could not confirm a promise."""


class BrokenPromiseError(SelfTestError):
    """A promise was broken."""


class NotHereError(SelfTestError):
    """Something can't be checked on this machine."""


class RecordsError(VirtualFlowError):
    """The manager's records cannot be read or written."""


class ManagerError(VirtualFlowError):
    """The manager refuses, or does not run."""


class UnknownJobError(ManagerError):
    """The manager has no such job."""
