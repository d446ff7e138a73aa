"""Program that runs a worker on its host, for a launcher on another one.

It ends the worker when the launcher's end of its input is closed, as when the launcher is gone.
"""

import json
import os
import subprocess
import sys
import threading

from tf_onebit._launch.groups import Watchdog, adopt_orphans, end
from tf_onebit._launch.hosts import reserved_ports
from tf_onebit._launch.ssh import READY


def _run():
    """Runs a worker, on its host. Returns its status, as a shell reports it."""
    # Workers of the same host get different ports: all keep theirs until the launcher knows all.
    with reserved_ports(1) as ports:
        print(READY, *ports, flush=True)
        line = sys.stdin.buffer.readline()
    if not line:
        return 0  # the launcher needs no worker any more
    content = json.loads(line)
    adopt_orphans()
    watchdog = Watchdog()
    try:
        worker = subprocess.Popen(
            content["program"],
            env=os.environ | content["environment"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=watchdog.watch_this_group,  # safe: this process has no threads yet
        )
    except OSError as error:
        print(f"tf-onebit launch: {content['program'][0]}: {error.strerror}", file=sys.stderr)
        return 127
    threading.Thread(target=_end_with_launcher, args=[worker.pid], daemon=True).start()
    status = worker.wait()
    end([worker.pid])
    watchdog.dismiss()
    return status if status >= 0 else 128 - status


def _end_with_launcher(group):
    """Waits until the launcher has closed its end or is gone, and ends the worker."""
    # Not by `sys.stdin`, whose lock this thread would hold when the program ends.
    while os.read(sys.stdin.fileno(), 1):
        pass
    end([group])


if __name__ == "__main__":
    sys.exit(_run())
