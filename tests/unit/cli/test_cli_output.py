"""What commands print reaches a pipe whole."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

SIZE = 300_000
PROGRAM = """
import signal, sys
import click
from exahpc import output
from exahpc.cli import main
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # interrupts a write that waits for its reader
{begin}
{write}
sys.stdout.flush()
signal.setitimer(signal.ITIMER_REAL, 0)  # an interpreter that ends has no handlers any more
"""


@pytest.mark.parametrize("begin", ["output.whole()", "main(['model', 'list'], standalone_mode=False)"])
@pytest.mark.parametrize("write", ["click.echo('x' * {})", "sys.stdout.buffer.write(b'x' * {})"])
def test_a_signal_in_the_middle_of_a_write_costs_no_byte(begin: str, write: str) -> None:
    program = PROGRAM.format(begin=begin, write=write.format(SIZE))
    with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        first = writer.stdout.read(1)
        time.sleep(0.3)  # the pipe is full meanwhile
        told = first + writer.stdout.read()
    assert writer.returncode == 0
    assert told.strip().endswith(b"x" * SIZE)
