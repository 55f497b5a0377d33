"""For every room: signals mean what they mean on a terminal."""

import signal

# A background job has SIGINT ignored, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
