"""The emulated AWS account: moto's server, mended, on loopback.

python -m runtime.local.rehearsal.emulator PORT
"""

import sys

from moto.server import main

from runtime.local.rehearsal import deletions, mends

if __name__ == "__main__":
    mends.apply()
    deletions.apply()
    main(["--host", "127.0.0.1", "--port", sys.argv[1]])
