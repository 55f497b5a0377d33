"""Entry point of the `turnback` script: Ctrl-C works from the first import on."""

import importlib
import sys

from runtime.errors import EXIT_INTERRUPTED


def main() -> None:
    """Import the commands, which takes about a second, and run one."""
    try:
        importlib.import_module("runtime.cli").app()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted before anything was started\n")
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
