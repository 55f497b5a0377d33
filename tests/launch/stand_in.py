"""A process in the place of an engine: forks as vLLM does, then serves /health.

python stand_in.py PORT [--pids FILE] [--deaf] [--exit-after S] [--never-ready] [--running FILE]
"""

import argparse
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


class _Health(http.server.BaseHTTPRequestHandler):
    running: Path | None = None

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/metrics" and self.running is not None:
            count = self.running.read_text("ascii")
            page = f"vllm:num_requests_running {count}\nvllm:num_requests_waiting 0\n"
            self.wfile.write(page.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--pids", type=Path)
    parser.add_argument("--deaf", action="store_true", help="ignores SIGTERM")
    parser.add_argument("--exit-after", type=float)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--running", type=Path, help="holds the number of running requests")
    options = parser.parse_args()
    _Health.running = options.running
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A grandchild in a session of its own: no process-group signal reaches it.
    core = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    if options.pids:
        options.pids.write_text(f"{os.getpid()} {core.pid}", "ascii")
    sys.stdout.write("stand-in has started\n")
    sys.stdout.flush()
    if options.exit_after is not None:
        threading.Timer(options.exit_after, os._exit, [7]).start()
    if options.never_ready:
        time.sleep(600)
    http.server.HTTPServer(("127.0.0.1", options.port), _Health).serve_forever()


if __name__ == "__main__":
    main()
