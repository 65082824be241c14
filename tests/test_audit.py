"""The SBOM, and what the answers of the audit mean."""

import json

import pytest

from tests import audit


def test_the_sbom_lists_what_the_package_needs_and_no_tool_of_ours() -> None:
    names = audit.required()
    assert {"typer", "rich", "numpy", "msgspec", "jinja2"} <= names
    assert not names & {"torch", "pytest", "ruff", "stallwise"}
    bill = audit.sbom(names)
    assert bill["bomFormat"] == "CycloneDX"
    assert len({one["bom-ref"] for one in bill["components"]}) == len(names)
    assert all(one["purl"] == f"pkg:pypi/{one['purl'].partition('/')[2]}" for one in bill["components"])
    assert bill["metadata"]["component"]["name"] == "stallwise"


@pytest.mark.parametrize(
    ("out", "code", "words"),
    [
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0, "1 packages audited, 0 known"),
        (
            {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}]},
            1,
            "a 1: X-1; mended in 2",
        ),
        ({"dependencies": [{"name": "a", "skip_reason": "unknown"}]}, 0, "a: not audited, unknown"),
        (None, audit.UNREACHABLE, ""),
    ],
)
def test_what_the_audit_says(out: object, code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.judged(1, "" if out is None else json.dumps(out), "requests: no route\n") == code
    assert words in capsys.readouterr().out


def test_an_unreachable_service_fails_only_where_everything_is_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "audit", lambda names: audit.UNREACHABLE)
    monkeypatch.delenv("STALLWISE_REQUIRE", raising=False)
    assert audit.main(audit.Path(str(tmp_path)) / "sbom.json") == 0
    assert "cannot be reached" in capsys.readouterr().err
    monkeypatch.setenv("STALLWISE_REQUIRE", "all")
    assert audit.main(audit.Path(str(tmp_path)) / "sbom.json") == 1
