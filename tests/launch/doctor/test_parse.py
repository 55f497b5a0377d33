"""What programs say, and junk in its place."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.launch.doctor import parse
from runtime.launch.doctor.libraries import running_version, told_by

FI_INFO = """provider: efa
    fabric: efa-direct
    domain: rdmap47s0-rdm
    version: 206.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap47s0-dgrm
    version: 206.0
provider: efa;ofi_rxd
    fabric: efa
    domain: rdmap48s0-dgrm
provider: tcp
    domain: ens32
"""


def test_fi_info() -> None:
    """Devices by provider, once each, whatever the endpoint type; layered providers too."""
    assert parse.fi_info_domains(FI_INFO) == {"efa": {"rdmap47s0", "rdmap48s0"}, "tcp": {"ens32"}}
    assert parse.fi_info_providers("efa:\n    version: 1\ntcp;ofi_rxm:\n    version: 2\n") == [
        "efa",
        "tcp",
    ]
    assert parse.fi_info_version("fi_info: 2.7.0\nlibfabric: 2.7.0amzn2.0\n") == "2.7.0amzn2.0"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.7.0amzn2.0", (2, 7)),
        ("65.0-1", (65,)),
        ("65", (65,)),
        ("6.8.0-1021-aws", (6, 8)),
        ("595.91.07", (595, 91, 7)),
        ("0.33", (0, 33)),
        ("0", (0,)),
        ("unknown", ()),
        ("", ()),
        ("9" * 5000, (999_999_999,)),
    ],
)
def test_version(text: str, numbers: tuple[int, ...]) -> None:
    """Leading numbers; zeros at the end say nothing."""
    assert parse.version(text) == numbers


def test_loader_cache_takes_the_first() -> None:
    """As the loader does."""
    text = """2 libs found in cache `/etc/ld.so.cache'
\tlibfabric.so.1 (libc6,x86-64) => /opt/amazon/efa/lib/libfabric.so.1
\tlibfabric.so.1 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libfabric.so.1
"""
    assert parse.loader_cache(text) == {"libfabric.so.1": "/opt/amazon/efa/lib/libfabric.so.1"}


def test_ldd() -> None:
    """Libraries and versions of symbols that are not found."""
    text = """\tlibfabric.so.1 => not found
\tlibc.so.6 => /lib/libc.so.6 (0x00007f)
./plugin.so: /lib/libfabric.so.1: version `FABRIC_1.7' not found (required by ./plugin.so)
"""
    assert parse.ldd_missing(text) == ["libfabric.so.1", "FABRIC_1.7"]


def test_efa_packages() -> None:
    """The installer's line, and the words of its packages."""
    text = """# EFA installer version: 1.51.0
# Debug packages installed: no
# Packages installed:
efa_3.3.1-1.amzn1_amd64 libfabric1-aws_2.7.0amzn2.0_amd64 rdma-core_65.0-1_amd64
"""
    found = parse.efa_packages(text)
    assert found["installer"] == "1.51.0"
    assert found["libfabric1-aws"] == "2.7.0amzn2.0"
    assert found["rdma-core"] == "65.0-1"
    rpm = "rdma-core-65.0-1.amzn2023.x86_64 libfabric-aws-2.7.0amzn2.0-1.amzn2023.x86_64"
    assert parse.version(parse.efa_packages(rpm)["rdma-core"]) == (65,)


def test_nvidia_smi() -> None:
    """Rows; complaints between them are none."""
    text = "0, 0\n1, [N/A]\nUnable to determine the device handle for GPU0000:9A:00.0, lost\n"
    assert parse.nvidia_csv(text, 2) == [["0", "0"], ["1", "[N/A]"]]
    rows = parse.nvidia_csv("00000000:9A:00.0, No, No\n", 3, r"[0-9A-F:.]+")
    assert rows == [["00000000:9A:00.0", "No", "No"]]
    links = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    links += "GPU 1: NVIDIA H200\n"
    assert parse.nvlinks(links) == {0: 1, 1: 0}


def test_chrony() -> None:
    """Seconds off, without a sign, and the leap status."""
    text = "A9FEA97B,169.254.169.123,4,1764.1,-0.25,0,0,-5,0,0,0,0,16.2,Normal\n"
    assert parse.chrony_tracking(text) == (0.25, "Normal")
    assert parse.chrony_tracking("506 Cannot talk to daemon") is None
    assert parse.chrony_tracking(text.replace("-0.25", "soon")) is None


def test_listeners() -> None:
    """Addresses as the kernel writes them; other states do not listen."""
    tcp = """  sl  local_address rem_address   st
   0: 0100007F:1F40 00000000:0000 0A 0
   1: 0A00000A:15E0 00000000:0000 0A 0
   2: 0A00000A:0016 0B00000A:D431 01 0
   3: junk:15E0 00000000:0000 0A 0
"""
    tcp6 = "   0: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A\n"
    assert parse.listeners(tcp, None, tcp6) == {
        8000: {ip_address("127.0.0.1"), ip_address("::")},
        5600: {ip_address("10.0.0.10")},
    }
    loopback = "   0: 00000000000000000000000001000000:1F40 0:0 0A\n"
    assert parse.listeners(loopback) == {8000: {ip_address("::1")}}


def test_small_files() -> None:
    """/proc/meminfo, /proc/PID/limits, NAME=VALUE, flags of a command line."""
    assert parse.meminfo("HugePages_Total:    5128\nActive(anon):  7 kB\n") == {
        "HugePages_Total": 5128,
        "Active(anon)": 7,
    }
    limits = (
        "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         65536   65536   bytes\n"
    )
    assert parse.memlock(limits) == "65536"
    assert parse.shell_variables("A=b=c\n# none\n D = e \n") == {"A": "b=c", "D": "e"}
    argv = ["python", "--port", "8000", "--eager", "--name=x", "--port", "9000"]
    assert parse.flags(argv) == {"--port": "9000", "--eager": "", "--name": "x"}


def test_scripts_answer_in_their_last_line() -> None:
    """Before it libraries print what they like."""
    assert told_by('turnback {"made": false}\nlog\nturnback {"made": true}\n\n') == {"made": True}
    for junk in ("", "made", "turnback {", "turnback [1]"):
        assert told_by(junk) == {}
    assert running_version('{"version": "0.33.0"}') == "0.33.0"
    for other in (None, "", "[]", '{"version": 1}', "<html>"):
        assert running_version(other) == ""


_LINES = st.lists(
    st.sampled_from(
        [
            *("provider: efa", "    domain: rdmap1s0-rdm", "domain: ", "provider: ", ": ", "efa:"),
            *("libfabric: ", "\tx (y) => /z", "0, 1", "GPU 99999999999: x", "GPU 1:", "GPU 1"),
            *(
                "\t Link 0: 1 GB/s",
                "a,b,c,d,e,f,g,h,i,j,k,l,m,n",
                "Max locked memory",
                "rdma-core_",
            ),
            *("   0: 0:0 0:0 0A", "   0: 0100007F:FFFFFFFFF 0:0 0A", "HugePages_Total:", "=", "--"),
            *(" => not found", "version `' not found", "turnback {}", "_1_2-3_amd64", "1.2.3"),
        ]
    )
    | st.text(max_size=40),
    max_size=12,
).map("\n".join)


@given(_LINES)
def test_junk_never_breaks_a_parser(text: str) -> None:
    """It gives nothing, or what can be read of it."""
    parse.fi_info_domains(text)
    parse.fi_info_providers(text)
    parse.fi_info_version(text)
    parse.loader_cache(text)
    parse.ldd_missing(text)
    parse.efa_packages(text)
    parse.nvlinks(text)
    parse.chrony_tracking(text)
    parse.listeners(text)
    parse.meminfo(text)
    parse.memlock(text)
    parse.shell_variables(text)
    parse.flags(text.split("\n"))
    parse.version(text)
    told_by(text)
    running_version(text)
    assert all(len(row) == 2 for row in parse.nvidia_csv(text, 2))
