"""Packages whose names load on first use: all of them do, and importing stays cheap."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = ("stallwise", "stallwise.buckets", "stallwise.data", "stallwise.elastic", "stallwise.run.traces")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_loads(package: str) -> None:
    module = importlib.import_module(package)
    optional = {"LightningCallback", "TrainerCallback"}  # need their framework
    for name in set(module.__all__) - optional:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_the_package_loads_no_torch(package: str) -> None:
    code = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=250).returncode == 0
