"""The command line as a user runs it: in a process of its own."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading

from tests import processes
from tests.processes import CONTEXT, begin, leave, start_server

# One thread: with more, sums may be in another order.
ENVIRONMENT = processes.ENVIRONMENT | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}


class Running:
    """A running process, with the part of subprocess.Popen's interface that tests need."""

    def __init__(self, function, arguments, environment, prepare):
        self.arguments = arguments
        start_server(ENVIRONMENT)
        # Pipes, not files: a test may limit the size of those.
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
        writers = [writer for _, writer in pipes]
        self._process = CONTEXT.Process(target=_main, args=(function, arguments, environment, prepare, *writers))
        self._process.start()
        self.pid = self._process.pid
        self._printed = [bytearray(), bytearray()]
        self._readers = []
        for (reader, writer), printed in zip(pipes, self._printed, strict=True):
            writer.close()
            self._readers.append(threading.Thread(target=_read_all, args=(reader, printed)))
            self._readers[-1].start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._process.kill()  # or a test that failed would wait for a command that does not end by itself
        self.communicate()

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def output(self):
        """What it has printed so far."""
        return self._printed[0].decode(errors="replace")

    def progress(self):
        """What it has told on the standard error stream so far."""
        return self._printed[1].decode(errors="replace")

    def communicate(self):
        """What it printed until its end, however long that takes on a busy machine."""
        self._process.join()
        for reader in self._readers:
            reader.join()
        return self.output(), self._printed[1].decode(errors="replace")


def _read_all(connection, printed):
    with connection:
        while part := os.read(connection.fileno(), 65536):
            printed.extend(part)


def _main(function, arguments, environment, prepare, output, errors):
    os.environ.clear()
    os.environ.update(environment)
    begin(output.fileno(), errors.fileno())
    output.close()
    errors.close()
    _heed_ctrl_c()
    if prepare is not None:
        prepare()
    function(*arguments)


def _heed_ctrl_c():
    """React to Ctrl-C again. A shell that runs the tests in the background makes them ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _command_line(*words):
    sys.argv = ["selective-backprop", *words]
    from selective_backprop_lab.__main__ import main

    main()


def start(*words, env=ENVIRONMENT, prepare=None):
    """Begin a command; prepare is called in its process before."""
    return Running(_command_line, [str(word) for word in words], env, prepare)


def run(*words, **options):
    """A command, to its end."""
    return _to_its_end(start(*words, **options))


def run_function(function, *arguments):
    """A function of a module, in a process of its own."""
    return _to_its_end(Running(function, arguments, ENVIRONMENT, None))


def run_script(path, *words, prepare=None):
    """A script, to its end, in a process that has torch already."""
    return _to_its_end(Running(_script, [str(path), *map(str, words)], ENVIRONMENT, prepare))


def _to_its_end(running):
    with running as process:
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.arguments, process.returncode, output, errors)


def text_of(result):
    """What was printed, without the frame and line breaks of error boxes."""
    return " ".join((result.stdout + result.stderr).replace("│", " ").split())


def records(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def without_seconds(folder):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records(folder)]


def _script(path, *words):
    sys.argv = [path, *words]
    kept = runpy.run_path(path, run_name="__main__")
    leave()  # with all of the script's objects: the end of a DDP model may wait for a thread that waits for it
    del kept


def run_script_on_ranks(path, *words, ranks=2):
    """A script on several ranks, with the variables that torchrun sets. It starts faster than by torchrun."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = ENVIRONMENT | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        Running(_script, [str(path), *map(str, words)], shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, None)
        for rank in range(ranks)
    ]
    printed = [rank.communicate() for rank in started]
    output, errors = ("".join(parts) for parts in zip(*printed, strict=True))
    code = next((rank.returncode for rank in started if rank.returncode), 0)
    return subprocess.CompletedProcess(started[0].arguments, code, output, errors)


def workers_of(process):
    """Ids of the processes that torchrun started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    return [int(pid) for pid in listed.split()]
