"""Messages on a local socket come out as they went in, and an end shows."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.wire import channel as channels
from exahpc.wire.channel import Channel
from exahpc.wire.link import MAX_MESSAGE_BYTES


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


@given(st.lists(st.binary(max_size=50), max_size=20), st.lists(st.integers(1, 40), min_size=1, max_size=50))
def test_messages_come_out_as_they_went_in_however_their_bytes_arrive(words: list[bytes], cuts: list[int]) -> None:
    raw, end = pair()
    channel = Channel(end)
    data = b"".join(struct.pack("<I", len(word)) + word for word in words)
    heard: list[bytes] = []
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        raw.sendall(data[at : at + size])
        heard += channel.receive()
        at, turn = at + size, turn + 1
    raw.close()
    assert heard == words
    assert channel.receive() == []
    assert channel.closed
    channel.close()


def test_a_length_beyond_all_bounds_ends_the_channel_and_what_came_before_counts() -> None:
    raw, end = pair()
    channel = Channel(end)
    raw.sendall(struct.pack("<I", 2) + b"ok" + struct.pack("<I", MAX_MESSAGE_BYTES + 1))
    assert channel.receive() == [b"ok"]
    assert channel.closed
    channel.close()
    raw.close()


def test_what_came_before_the_other_ends_death_can_be_read_after_a_send_has_failed() -> None:
    a, b = pair()
    dying, channel = Channel(a), Channel(b)
    assert dying.send(b"last word")
    dying.close()
    assert not all(channel.send(b"x") for _ in range(3))
    assert channel.receive() == [b"last word"]
    assert channel.receive() == []
    assert channel.closed
    channel.close()


def test_the_largest_messages_may_come_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_MOST_UNREAD", 500_000)
    a, b = pair()
    sending, channel = Channel(a), Channel(b)
    words = [b"x" * 499_000, b"y" * 499_000]
    assert all(sending.send(word) for word in words)
    heard: list[bytes] = []
    while len(heard) < 2:
        heard += channel.receive()
        sending.flush()
    assert heard == words
    assert not all(sending.send(word) for word in words * 2), "it does not read"
    sending.close()
    channel.close()
