"""The critical path of a traced job over all its ranks."""

from stallwise.model.critical import On, Piece, RankWork, Segment, Wait, critical_path
from stallwise.model.rendezvous import Key
from stallwise.record.trace_ranks import RankView, TracedJob
from stallwise.run.readers.device_trace import NO_LAUNCH, Work

_ON = {
    Work.COMPUTE: On.COMPUTE,
    Work.COMMUNICATION: On.COMMUNICATION,
    Work.MEMORY: On.COPY,
    Work.OTHER: On.COMPUTE,
}


def path_of(job: TracedJob) -> tuple[Segment, ...]:
    """From the begin of the first kept step to the end of the last one's work, on the common clock."""
    begin = min(
        step.start_ns + view.shift_ns for view in job.ranks for step in view.steps if step.number == job.kept[0]
    )
    numbers = {meeting.key: number for number, meeting in enumerate(job.meetings)}
    came = {number: (meeting.last, meeting.came_ns) for number, meeting in enumerate(job.meetings)}
    ranks = {view.rank: _work(view, numbers) for view in job.ranks}
    ends = [view.ends(job.kept[-1]) + view.shift_ns for view in job.ranks if _has(view, job.kept[-1])]
    end = max([*ends, *(piece.end_ns for work in ranks.values() for piece in work.pieces[-1:])])
    return critical_path(ranks, came, begin, end) if end > begin else ()


def _has(view: RankView, number: int) -> bool:
    return any(step.number == number for step in view.steps)


def _work(view: RankView, meetings: dict[Key, int]) -> RankWork:
    work, shift, names = view.trace.work, view.shift_ns, view.trace.names
    by_place = {(visit.start_ns, visit.end_ns): meetings.get(key) for key, visit in view.visits.items()}
    launches = None if view.trace.on_processor else work.launch_ns.tolist()
    pieces = []
    rows = zip(work.start_ns.tolist(), work.end_ns.tolist(), work.kind.tolist(), work.name.tolist(), strict=True)
    waits = work.sync.tolist()
    for i, (start, end, kind, name) in enumerate(rows):
        if waits[i]:
            continue
        launch = None if launches is None or launches[i] == NO_LAUNCH else launches[i] + shift
        meets = by_place.get((start, end)) if kind == Work.COMMUNICATION else None
        pieces.append(Piece(start + shift, end + shift, launch, _ON[Work(kind)], names[name], meets))
    if view.trace.on_processor:
        pieces += [
            Piece(mark.start_ns + shift, mark.end_ns + shift, None, On.LOADER, mark.name) for mark in view.trace.loader
        ]
    found = [Wait(mark.start_ns + shift, mark.end_ns + shift, loader=False) for mark in view.trace.blocking]
    found += [Wait(mark.start_ns + shift, mark.end_ns + shift, loader=True) for mark in view.trace.loader]
    return RankWork(sorted(pieces, key=lambda piece: piece.end_ns), sorted(found, key=lambda wait: wait.end_ns))
