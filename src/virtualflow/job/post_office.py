"""What workers of groups that form have for each other, collected by their coordinator and delivered together.

In a group of N workers, each posts something for all others, and writes a letter to each. Passed on one by one, that
would be N * N messages. Delivered together it is one or two for each worker, however many have written meanwhile: the
posts of all, which are alike and so become small when compressed, and the worker's own letters.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from virtualflow.core.mapping import DeviceId
from virtualflow.errors import MessageError
from virtualflow.job.wire_messages import GroupLetters, GroupPost, GroupPosts

Posts = dict[str, bytes]  # by key
LEVEL = 4  # of compression: at lower ones, long values that are alike stay large, as those of gloo are


@dataclass(slots=True)
class _Mail:
    """What waits for the workers of one group."""

    members: Mapping[DeviceId, int]  # with their ranks
    posts: Posts = field(default_factory=dict)  # for all
    letters: dict[DeviceId, Posts] = field(default_factory=dict)  # by who is to have them


class PostOffice:
    """Collects posts and letters of groups until ``deliver``. Only members may send to a group."""

    def __init__(
        self,
        members_of: Callable[[str], Sequence[DeviceId]],
        send: Callable[[Sequence[DeviceId], GroupPosts], object],
    ) -> None:
        """*members_of* knows the workers of a group, by rank; of one that is no longer wanted there are none."""
        self._members_of = members_of
        self._send = send
        self._waiting: dict[str, _Mail] = {}  # by the group's name

    def take(self, sender: DeviceId, message: GroupPost | GroupLetters) -> None:
        """A worker has something for the others of a group. Raises MessageError if it names others than these."""
        if (mail := self._mail(message.group)) is None or sender not in mail.members:
            return
        if isinstance(message, GroupPost):
            mail.posts[message.key] = message.value
            return
        if len(message.values) != len(mail.members):
            raise MessageError(f"{len(message.values)} letters came for a group of {len(mail.members)} workers")
        for device, rank in mail.members.items():
            if device != sender:
                mail.letters.setdefault(device, {})[message.key] = message.values[rank]

    def deliver(self) -> None:
        """Send what has come, except to groups that are no longer wanted."""
        waiting, self._waiting = self._waiting, {}
        for group, mail in waiting.items():
            if not self._members_of(group):
                continue
            if mail.posts:
                self._send(tuple(mail.members), packed(group, mail.posts))
            for device, letters in mail.letters.items():
                self._send((device,), packed(group, letters))

    def _mail(self, group: str) -> _Mail | None:
        if group not in self._waiting:
            if not (members := self._members_of(group)):
                return None
            self._waiting[group] = _Mail({device: rank for rank, device in enumerate(members)})
        return self._waiting[group]


def packed(group: str, posts: Posts) -> GroupPosts:
    values = posts.values()
    return GroupPosts(group, tuple(posts), tuple(map(len, values)), zlib.compress(b"".join(values), LEVEL))


def unpacked(message: GroupPosts) -> Iterator[tuple[str, bytes]]:
    """The posts, with their keys."""
    data, begin = zlib.decompress(message.data), 0
    for key, size in zip(message.keys, message.sizes, strict=True):
        yield key, data[begin : begin + size]
        begin += size
