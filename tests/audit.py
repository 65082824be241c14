"""What the package needs, as a CycloneDX SBOM, and the known vulnerabilities of it: `make audit`.

Both are about `stallwise[all]` and whatever that requires, in the versions that are installed here. Where the service
that knows the vulnerabilities cannot be reached, that is said and nothing fails; with STALLWISE_REQUIRE=all it does.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

UNREACHABLE = 3
_PATIENCE_S = 240


def required(name: str = "stallwise", extras: frozenset[str] = frozenset({"all"})) -> set[str]:
    """The names of all distributions that one requires with its extras, as far as they are installed."""
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [(canonicalize_name(name), extras)]
    while left:
        one, chosen = left.pop()
        if (one, chosen) in seen:
            continue
        seen.add((one, chosen))
        for text in importlib.metadata.requires(one) or []:
            needed = Requirement(text)
            markers = [{"extra": extra} for extra in chosen] or [{"extra": ""}]
            if needed.marker is not None and not any(needed.marker.evaluate(marker) for marker in markers):
                continue
            other = canonicalize_name(needed.name)
            if _installed(other):
                left.append((other, frozenset(needed.extras)))
    return {one for one, _ in seen} - {canonicalize_name(name)}


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def sbom(names: set[str]) -> dict[str, Any]:
    """A bill of materials in CycloneDX 1.6."""
    own = importlib.metadata.metadata("stallwise")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(own) | {"type": "application"}},
        "components": [_component(importlib.metadata.metadata(name)) for name in sorted(names)],
    }


def _component(metadata: Any) -> dict[str, Any]:
    name, version = metadata["Name"], metadata["Version"]
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    component: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    expression, text = metadata["License-Expression"], metadata["License"]
    if expression:
        component["licenses"] = [{"expression": expression}]
    elif text and "\n" not in text and len(text) < 80:
        component["licenses"] = [{"license": {"name": text}}]
    return component


def audit(names: set[str]) -> int:
    """0: none is known. 1: some are, and printed. 3: the service cannot be reached."""
    pins = "".join(f"{name}=={importlib.metadata.version(name).partition('+')[0]}\n" for name in sorted(names))
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text(pins)
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        command += ["--format", "json", "--requirement", str(listed)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return UNREACHABLE
    return judged(done.returncode, done.stdout, done.stderr)


def judged(code: int, out: str, err: str) -> int:
    """What pip-audit's answer means; without a list of packages it has not asked anybody."""
    try:
        packages = json.loads(out)["dependencies"]
    except (ValueError, KeyError, TypeError):
        sys.stderr.write(f"{err.strip().splitlines()[-1] if err.strip() else f'exit code {code}'}\n")
        return UNREACHABLE
    known = [(one["name"], one["version"], each) for one in packages for each in one.get("vulns", ())]
    for name, version, each in known:
        fixed = f"; mended in {', '.join(each['fix_versions'])}" if each.get("fix_versions") else ""
        sys.stdout.write(f"{name} {version}: {each['id']}{fixed}\n")
    for one in packages:
        if "skip_reason" in one:
            sys.stdout.write(f"{one['name']}: not audited, {one['skip_reason']}\n")
    audited = sum("skip_reason" not in one for one in packages)
    sys.stdout.write(f"{audited} packages audited, {len(known)} known vulnerabilities\n")
    return 1 if known else 0


def main(path: Path) -> int:
    """Write the SBOM, then audit."""
    names = required()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sbom(names), indent=1) + "\n")
    sys.stdout.write(f"{len(names)} packages in {path}\n")
    code = audit(names)
    if code != UNREACHABLE:
        return code
    sys.stderr.write("Not audited: the service that knows the vulnerabilities cannot be reached from here.\n")
    return 1 if os.environ.get("STALLWISE_REQUIRE") == "all" else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
