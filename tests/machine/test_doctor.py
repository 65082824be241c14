"""Which features a machine supports."""

from stallwise.machine.doctor import features


def test_every_absent_thing_comes_with_what_to_do() -> None:
    poor = features(torch=None, gpu_count=0, slurm=None, ray=False, drops_page_cache=False, counts_runqueue_wait=False)
    assert [f.name for f in poor if f.ready] == ["catalog, compare, report"]
    assert all(f.missing and f.advice for f in poor if not f.ready)
