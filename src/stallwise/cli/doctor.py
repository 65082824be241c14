"""`stallwise doctor`."""

from stallwise.cli.output import Json, answer


def doctor(as_json: Json = False) -> None:
    """Show what this machine has and what is missing for which feature."""
    from pathlib import Path

    from stallwise.record.diagnosis import diagnose
    from stallwise.report.diagnosis import draw

    found = diagnose(Path.cwd())
    answer(lambda: found, lambda: draw(found), as_json=as_json)
