"""Good nodes; `tests/launch/faults.py` breaks them."""

import json
from pathlib import Path

from tests.launch.fake_node import EFA, PLUGIN, SITE, VERBS_FOLDER, FakeNode, Kind

P5EN = Kind("p5en.48xlarge", "NVIDIA H200", "0xefa2", range(79, 95))
P6_B300 = Kind("p6-b300.48xlarge", "NVIDIA B300", "0xefa3", range(100, 116), cards=17)
"""17 network cards, of which the first has no EFA."""


def good_node(root: Path, kind: Kind = P5EN, *, url: str = "", role: str = "decode") -> FakeNode:
    """A node that has booted and serves at `url`; empty: it has not started an engine yet."""
    node = FakeNode(root, kind, role)
    for bus in kind.busses:
        node.add_efa(bus)
    for card in range(kind.cards):
        node.add_ena(kind.busses[0] - 1 + card)
    node.spec_text = _spec_text(role, len(node.devices))
    node.write("sys/devices/virtual/dmi/id/product_name", f"{kind.instance}\n")
    node.write("sys/module/efa/version", f"{EFA['kernel_module']}\n")
    node.write("sys/module/nvidia/version", "595.91.07\n")
    node.write("proc/sys/kernel/osrelease", "6.8.0-1021-aws\n")
    node.write("proc/modules", "efa_nv_peermem 16384 0 - Live 0x0\nefa 139264 16 - Live 0x0\n")
    node.write("dev/gdrdrv", "")
    node.write("proc/meminfo", _MEMINFO)
    node.write(f"{VERBS_FOLDER}/libibverbs.so.1", "\x7fELF /libibverbs/lib%s-rdmav59.so\0")
    node.write(f"{VERBS_FOLDER}/libibverbs/libefa-rdmav59.so", "")
    node.write(f"{SITE}/{PLUGIN}", "")
    node.write("opt/turnback/models/Qwen/Qwen3-32B/1/config.json", "{}")
    node.write(
        "etc/turnback/node.env",
        f"TURNBACK_DEPLOYMENT=ours\nTURNBACK_ROLE={role}\nTURNBACK_PARAMETER=/turnback/ours/{role}\n"
        "AWS_REGION=us-west-2\n",
    )
    node.image()
    node.packages()
    node.fi_info()
    node.gpus(kind.gpus)
    node.modules()
    node.engine_environment()
    node.units()
    node.clock()
    node.loader()
    node.free(20 * 2**40)
    node.write(f"{SITE}/nixl_cu13.libs/libserdes.so", "")
    node.write(f"{SITE}/nvidia/cu13/lib/libcudart.so.13", "")
    node.ldd("libserdes.so", "libcudart.so.13")
    node.listen(22)
    if url:
        serve(node, url)
    return node


def serve(node: FakeNode, url: str) -> None:
    """Let its engine run."""
    node.engine_url = url
    node.boot()
    node.status()
    node.engine()
    node.listen(22, 8000, 5600)


_MEMINFO = """MemTotal:       2097152000 kB
MemFree:        1999999999 kB
Active(anon):        12345 kB
HugePages_Total:    5128
HugePages_Free:     5120
Hugepagesize:       2048 kB
"""


def _spec_text(role: str, efa_devices: int) -> str:
    return json.dumps(
        {
            "role": role,
            "serving": {
                "model": "/opt/turnback/models/Qwen/Qwen3-32B/1",
                "served_model_name": "qwen",
                "dtype": "bfloat16",
                "tensor_parallel_size": 8,
                "max_model_len": 32768,
                "port": 8000,
            },
            "kv": {"backends": ["LIBFABRIC"], "block_size_tokens": 128},
            "transport": {"efa_devices": efa_devices},
            "image": {"engine_version": "0.33"},
            "generation": "ab12",
            "host": "node",
            "side_channel_port": 5600,
        }
    )
