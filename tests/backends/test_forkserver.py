"""A fork server whose coordinator is killed at any moment ends by itself, after its workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

from virtualflow.backends.fork_messages import FROM_SERVER, ForkRequest, ServerReady
from virtualflow.core.job_description import JobDescription
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.spec import WorkerSpec

SPEC = WorkerSpec("job", JobDescription("script.py"), "", "0", ("0",), "127.0.0.1", 30.0)


def test_a_coordinator_that_is_gone_when_its_worker_is_forked_and_ends_is_no_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line, other_end = socket.socketpair()
    command = [sys.executable, "-m", "virtualflow.backends.forkserver", str(theirs.fileno())]
    with ours, line, other_end, subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as server:
        theirs.close()
        assert isinstance(decoded(FROM_SERVER, ours.recv(1 << 16)), ServerReady)
        server.send_signal(signal.SIGSTOP)  # so that the request is the last thing that it gets
        with open(os.devnull, "w") as nowhere:
            socket.send_fds(ours, [encoded(ForkRequest(SPEC, {}))], [nowhere.fileno(), nowhere.fileno(), line.fileno()])
        ours.close()
        other_end.close()
        server.send_signal(signal.SIGCONT)
        assert server.stderr is not None
        errors = server.stderr.read().decode()
        assert server.wait() == 0, errors
        assert "Traceback" not in errors
