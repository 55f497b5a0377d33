"""Server-sent events out of a byte stream that is cut anywhere. Pure."""


class EventSplitter:
    """Collects bytes and gives the data of every finished event.

    Lines may end in LF or CRLF. Fields other than `data` are skipped; an event that the
    stream's end cuts off is not given.

    Attributes:
        last_comment: text of the latest comment line; keep-alives are comments too.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self.last_comment = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes.

        Returns:
            Data of the events that these bytes complete, in order.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[len(b"data:") :].removeprefix(b" "))
            elif text.startswith(b":"):
                self.last_comment = text[1:].strip()
            elif not text and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
