"""What programs and kernel files say, as values. Pure; junk gives nothing."""

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

_VERSION = re.compile(r"\d+(?:\.\d+)*")
_LISTENING = "0A"


def version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: `2.7.0amzn2.0` is (2, 7, 0); empty: there are none.

    Zeros at the end say nothing: 65 and 65.0 are equal.
    """
    match = _VERSION.match(text.strip())
    numbers = [int(each[:9]) for each in match[0].split(".")] if match else []
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def fi_info_domains(text: str) -> dict[str, set[str]]:
    """Device names by provider, out of `fi_info`.

    Source: blocks of `provider: efa`, `fabric: efa`, `domain: rdmap16s27-rdm` and so on.
    """
    found: dict[str, set[str]] = {}
    provider = ""
    for line in text.splitlines():
        key, _, value = line.strip().partition(": ")
        if key == "provider" and value:
            provider = value.split(";")[0].strip()
            found.setdefault(provider, set())
        elif key == "domain" and provider and value:
            found[provider].add(re.sub(r"-(rdm|dgrm)$", "", value.strip()))
    return found


def fi_info_providers(text: str) -> list[str]:
    """Names of `fi_info -l`: lines that end in a colon, such as `tcp:`."""
    names = re.findall(r"^([a-z][\w;]*):$", text, re.MULTILINE)
    return sorted({each.split(";")[0] for each in names})


def fi_info_version(text: str) -> str:
    """libfabric's version out of `fi_info --version`; empty: it does not say."""
    match = re.search(r"^libfabric: (\S+)$", text, re.MULTILINE)
    return match[1] if match else ""


def loader_cache(text: str) -> dict[str, str]:
    """First path of each library, out of `ldconfig -p`: the one that programs get."""
    found: dict[str, str] = {}
    for name, path in re.findall(r"^\s*(\S+) \(.*\) => (/\S+)$", text, re.MULTILINE):
        found.setdefault(name, path)
    return found


def ldd_missing(text: str) -> list[str]:
    """Libraries, or versions of symbols, that `ldd` does not find."""
    return sorted(set(re.findall(r"^\s*(\S+) => not found$", text, re.MULTILINE))) + sorted(
        set(re.findall(r"version `(\S+)' not found", text))
    )


def efa_packages(text: str) -> dict[str, str]:
    """`/opt/amazon/efa_installed_packages`: the installer's version and those of its packages.

    Returns:
        Versions by name, `installer` among them.

    Source: a line `# EFA installer version: X.Y.Z`, then words `rdma-core_X.Y-1_amd64`.
    """
    found: dict[str, str] = {}
    if match := re.search(r"EFA installer version: *(\S+)", text):
        found["installer"] = match[1]
    for name, told in re.findall(r"(?<!\S)([a-z][\w.+-]*?)[_-](\d[\w.+~-]*)", text):
        found.setdefault(name, re.split(r"_(?:amd64|arm64|all)", told)[0])
    return found


def nvidia_csv(text: str, columns: int, first: str = r"\d+") -> list[list[str]]:
    """Rows of `nvidia-smi --format=csv,noheader,nounits`; other lines are its complaints.

    Args:
        text: its output.
        columns: that a row has.
        first: pattern of the first cell.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns and re.fullmatch(first, row[0])]


def nvlinks(text: str) -> dict[int, int]:
    """Active links by GPU, out of `nvidia-smi nvlink --status`."""
    found: dict[int, int] = {}
    gpu: int | None = None
    for line in text.splitlines():
        if match := re.match(r"^GPU (\d{1,3}):", line):
            gpu = int(match[1])
            found.setdefault(gpu, 0)
        elif gpu is not None and re.match(r"^\s+Link \d+: [\d.]+ GB/s", line):
            found[gpu] += 1
    return found


def chrony_tracking(text: str) -> tuple[float, str] | None:
    """Seconds that the clock is off, and the leap status, out of `chronyc -c tracking`."""
    cells = text.strip().split(",")
    if len(cells) < 14:
        return None
    try:
        return abs(float(cells[4])), cells[13]
    except ValueError:
        return None


def listeners(*tables: str | None) -> dict[int, set[IPv4Address | IPv6Address]]:
    """Addresses by TCP port that something listens at, out of /proc/net/tcp and tcp6."""
    found: dict[int, set[IPv4Address | IPv6Address]] = {}
    for line in "\n".join(each or "" for each in tables).splitlines():
        words = line.split()
        if len(words) < 4 or words[3] != _LISTENING:
            continue
        address, _, port = words[1].partition(":")
        try:
            found.setdefault(int(port, 16), set()).add(_address(address))
        except ValueError:
            continue
    return found


def _address(text: str) -> IPv4Address | IPv6Address:
    """Words of 32 bits, each in the machine's (little-endian) order."""
    raw = bytes.fromhex(text)
    words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
    return ip_address(b"".join(words))


def meminfo(text: str) -> dict[str, int]:
    """Numbers of /proc/meminfo by name, in its own units (kB, or pages)."""
    return {
        name: int(value)
        for name, value in re.findall(r"^(\w+(?:\(\w+\))?):\s+(\d{1,18})", text, re.MULTILINE)
    }


def memlock(limits: str) -> str:
    """Soft limit out of /proc/PID/limits, `unlimited` or bytes; empty: it does not say."""
    match = re.search(r"^Max locked memory\s+(\S+)", limits, re.MULTILINE)
    return match[1] if match else ""


def shell_variables(text: str) -> dict[str, str]:
    """NAME=VALUE lines."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def flags(argv: Iterable[str]) -> Mapping[str, str]:
    """Values of `--name value` and `--name=value`; the last of a name counts."""
    found: dict[str, str] = {}
    words = [*argv]
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        if not equals and at + 1 < len(words) and not words[at + 1].startswith("--"):
            value = words[at + 1]
        found[name] = value
    return found
