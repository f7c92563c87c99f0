"""For tests of code that uses VirtualFlow, of policies and managers, and for tests that tests can fail.

``training`` is for scripts; ``thread_group``, ``fake_backend``, ``fake_member`` and ``fake_launcher`` stand for
processes, ``fake_clock`` for time. Nothing else of this project imports this folder. Start with ``fake_backend``.
"""

from virtualflow.testing.fake_backend import FakeBackend, FakeWorker
from virtualflow.testing.fake_clock import FakeClock
from virtualflow.testing.fake_launcher import FakeLauncher, FakeProcess
from virtualflow.testing.fake_member import FakeMember
from virtualflow.testing.thread_group import ThreadGroup, run_together
from virtualflow.testing.training import RecordingDataset, break_the_grid, kill_at

__all__ = [
    "FakeBackend",
    "FakeClock",
    "FakeLauncher",
    "FakeMember",
    "FakeProcess",
    "FakeWorker",
    "RecordingDataset",
    "ThreadGroup",
    "break_the_grid",
    "kill_at",
    "run_together",
]
