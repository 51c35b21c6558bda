"""A gateway as a process: how it is started, and which of its processes talks to the engine."""

from __future__ import annotations

import socket
import sys
import tempfile
import time

from longwire.conform.subject import Subject, command_line, descendants, free_port

FORKS = """
import os, socket, sys, time
if os.fork() == 0:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.recv(1)
else:
    time.sleep(60)
"""


def test_words_are_filled_in_and_no_shell_reads_them() -> None:
    command = "gateway --port {port} --engine {upstream}/v1 --name 'a b; c' {other}"
    assert command_line(command, 80, "http://e:1") == [
        "gateway", "--port", "80", "--engine", "http://e:1/v1", "--name", "a b; c", "{other}",
    ]  # fmt: skip


def test_the_process_with_the_connection_is_killed_and_all_others_end_with_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryFile() as log:
        subject = Subject([sys.executable, "-c", FORKS, str(server.getsockname()[1])], log)
        try:
            connection, peer = server.accept()
            (child,) = descendants(subject.process.pid)
            assert subject.kill_worker({peer}) == ""
            assert connection.recv(1) == b"", "the kernel closes what the killed one held"
            assert subject.is_running()
            assert subject.kill_worker({peer}).startswith("there is no process")
            connection.close()
        finally:
            subject.stop()
        assert not subject.is_running()
        assert child not in descendants(subject.process.pid)


def test_a_single_process_is_not_killed() -> None:
    with tempfile.TemporaryFile() as log:
        subject = Subject([sys.executable, "-c", "import time; time.sleep(60)"], log)
        try:
            assert subject.kill_worker({("127.0.0.1", 1)}).startswith("there is no process")
            assert subject.is_running()
        finally:
            began = time.monotonic()
            subject.stop()
        assert time.monotonic() - began < 10


def test_a_free_port_can_be_taken() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass
