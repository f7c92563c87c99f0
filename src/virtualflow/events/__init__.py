"""A job's event stream: typed events, a line of JSON each, in the job's folder.

``vf verify``, the progress bar, the dashboard and everything else that shows a job read this stream and nothing else.
``event_types`` has the events, ``event_log`` the one writer, ``event_reader`` the one reader: it skips a damaged line,
counts it and reports it once. ``lines`` has what both know of files of lines, and ``certificate`` compares two
streams; ``step_total`` predicts the number of steps. What a job's workers print is not here, but in ``job.output``.
Start with ``event_types``.
"""

from virtualflow.events.event_log import EventLog, stream_of, streams_in
from virtualflow.events.event_reader import (
    STREAM,
    EventReader,
    last_step,
    read_events,
    read_newest_first,
    read_timed_events,
)
from virtualflow.events.event_types import (
    CorruptionFound,
    EpochEnded,
    EpochStarted,
    Evaluated,
    Loaded,
    Regrouped,
    ReplicasAligned,
    RunStarted,
    Saved,
    StepDone,
    StreamEvent,
    decode,
    encode,
)
from virtualflow.events.step_total import StepTotal

__all__ = [
    "STREAM",
    "CorruptionFound",
    "EpochEnded",
    "EpochStarted",
    "Evaluated",
    "EventLog",
    "EventReader",
    "Loaded",
    "Regrouped",
    "ReplicasAligned",
    "RunStarted",
    "Saved",
    "StepDone",
    "StepTotal",
    "StreamEvent",
    "decode",
    "encode",
    "last_step",
    "read_events",
    "read_newest_first",
    "read_timed_events",
    "stream_of",
    "streams_in",
]
