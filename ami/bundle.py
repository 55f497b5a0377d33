"""What a build instance needs of this repository, as one archive of always the same bytes."""

import gzip
import io
import tarfile
from pathlib import Path

from ami.versions import Versions, read_versions, step_variables

ROOT = Path(__file__).resolve().parents[1]
_PLACES = ("steps", "files", "units")


def bundle_files(versions: Versions) -> dict[str, Path | str]:
    """Name in the archive -> file, or text."""
    folder = Path(__file__).parent
    files: dict[str, Path | str] = {
        f"{place}/{path.name}": path
        for place in _PLACES
        for path in (folder / place).iterdir()
        if path.is_file()
    }
    files["verify.sh"] = folder / "verify.sh"
    files["steps/versions.env"] = step_variables(versions)
    for table in ("kit", "engine"):
        lock = versions[table]["lock"]
        files[lock] = ROOT / lock
    return files


def write_bundle(path: Path, versions: Versions | None = None) -> Path:
    """Write the archive, a gzipped tar; scripts keep that they can be executed."""
    files = bundle_files(versions or read_versions())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            source = files[name]
            content = source.encode() if isinstance(source, str) else source.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return path
