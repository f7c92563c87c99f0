"""What the workers of a group post to each other before they are connected, by way of the coordinator."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

from virtualflow.job.wire_messages import GroupLetters, GroupPost


class PostBox:
    """What the workers of a group post to each other before they are connected.

    A post may come before this worker waits for it.
    """

    def __init__(self, send: Callable[[GroupPost | GroupLetters], object]) -> None:
        """*send* takes what is for the other workers of a group."""
        self._send = send
        self._values: dict[str, dict[str, bytes]] = defaultdict(dict)  # by the group's name, and by key
        self._ended: set[str] = set()  # groups
        self._news = threading.Condition(threading.RLock())

    def post(self, group: str, key: str, value: bytes) -> None:
        """Have all workers of *group* know a value, this one included."""
        self.add(group, [(key, value)])
        self._send(GroupPost(group, key, value))

    def post_each(self, group: str, key: str, values: Sequence[bytes]) -> None:
        """Have each other worker of *group* know another value: *values* go by rank."""
        self._send(GroupLetters(group, key, tuple(values)))

    def add(self, group: str, posts: Iterable[tuple[str, bytes]]) -> None:
        """Workers of *group* have posted values."""
        with self._news:
            if group not in self._ended:
                self._values[group].update(posts)
                self._news.notify_all()

    def wake(self) -> None:
        """Have those who wait look again whether they still should."""
        with self._news:
            self._news.notify_all()

    def end(self, group: str) -> None:
        """Drop the posts of *group*: no worker waits for them any more."""
        with self._news:
            self._values.pop(group, None)
            self._ended.add(group)

    def has(self, group: str, keys: Sequence[str]) -> bool:
        with self._news:
            return self._values[group].keys() >= set(keys)

    def wait(self, group: str, keys: Sequence[str], seconds: float, broken: Callable[[], bool]) -> list[bytes]:
        """The values of *keys*, as soon as all were posted; RuntimeError if one is late, or the group is *broken*."""
        with self._news:
            self._news.wait_for(lambda: self.has(group, keys) or broken(), seconds)
            if not self.has(group, keys):
                raise RuntimeError(
                    "a worker was lost meanwhile" if broken() else f"nothing was posted within {seconds:.0f} s"
                )
            return [self._values[group][key] for key in keys]


class LineStore(Store):
    """A group's store, as torch wants one: what is set here is posted to the other workers of the group."""

    def __init__(self, group: str, posts: PostBox, patience_seconds: float, broken: Callable[[], bool]) -> None:
        super().__init__()
        self._group = group
        self._posts = posts
        self._patience_seconds = patience_seconds
        self._broken = broken

    def set(self, key: str, value: bytes | str) -> None:
        self._posts.post(self._group, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._posts.wait(self._group, [key], self._patience_seconds, self._broken)[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = timeout.total_seconds() if timeout is not None else self._patience_seconds
        self._posts.wait(self._group, keys, seconds, self._broken)

    def check(self, keys: list[str]) -> bool:
        return self._posts.has(self._group, keys)
