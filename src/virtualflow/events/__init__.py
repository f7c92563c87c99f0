"""A job's event stream: typed events, a line of JSON each, in the job's folder.

``vf verify``, the progress bar, the dashboard and everything else that shows a job read this stream and nothing else.
``event_types`` has the events, ``event_log`` the one writer, ``event_reader`` the one reader: it skips a damaged line,
counts it and reports it once. ``lines`` has what both know of files of lines. What a job's workers print is not here,
but in ``job.output``.
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
    EpochEnded,
    EpochStarted,
    Evaluated,
    Event,
    Loaded,
    Regrouped,
    ReplicasAligned,
    RunStarted,
    Saved,
    StepDone,
    decode,
    encode,
)

__all__ = [
    "STREAM",
    "EpochEnded",
    "EpochStarted",
    "Evaluated",
    "Event",
    "EventLog",
    "EventReader",
    "Loaded",
    "Regrouped",
    "ReplicasAligned",
    "RunStarted",
    "Saved",
    "StepDone",
    "decode",
    "encode",
    "last_step",
    "read_events",
    "read_newest_first",
    "read_timed_events",
    "stream_of",
    "streams_in",
]
