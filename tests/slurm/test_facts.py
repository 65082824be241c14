"""What a job says about itself in its comment."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.slurm.facts import JobDescription, comment_of, description_in, gpus_in, mark_in


def test_a_job_tells_about_itself_in_its_comment() -> None:
    description = JobDescription(speeds=(1.0, 0.5), model='a"b', step_s=0.1, record="/x")
    assert description_in(comment_of(description)) == description
    assert description_in("mine stallwise:{}") == JobDescription()
    assert description_in("") is None
    assert description_in('stallwise:{"speeds":[1e999]}') is None
    assert description_in('stallwise:{"step_s":-1}') is None
    with pytest.raises(InputError, match="5022 characters"):
        comment_of(JobDescription(model="m" * 5000))


NESTED = "stallwise:{" + '"x":' + "[" * 1000 + "]" * 1000 + "}"
HOSTILE = (
    'stallwise:{"record":"/a\\u0000b"}',
    'stallwise:{"record":"/a\\u001b]0;x"}',
    'stallwise:{"model":"\\ud800"}',
    'stallwise:{"work_s":' + "9" * 1000 + "}",
    'stallwise:{"speeds":[1e-320]}',
    NESTED,
    "stallwise:" + "[" * 2000,
    "stallwise:{}" + "x" * 5000,
    "stallwise:\ud800",
    "stallwise:\0",
)


@pytest.mark.parametrize("comment", HOSTILE)
def test_a_comment_that_cannot_be_used_counts_as_none(comment: str) -> None:
    assert description_in(comment) is None
    mark_in(comment)


@given(
    st.text() | st.recursive(st.text() | st.floats() | st.none(), lambda x: st.lists(x), max_leaves=5).map(json.dumps)
)
def test_any_comment_is_none_or_a_usable_description(text: str) -> None:
    for comment in (text, f"stallwise:{text}", f'stallwise:{{"record":{text},"speeds":{text},"model":{text}}}'):
        description = description_in(comment)
        mark_in(comment)
        if description is not None:
            Path(description.record or "/").is_dir()  # no ValueError of a NUL
            assert all(0 < speed <= 1 for speed in description.speeds)
            (description.model or "").encode()


@given(st.text(alphabet="gpu:,/=()0123456789a", max_size=40))
def test_gpus_in_any_text_are_a_number_the_state_can_hold(text: str) -> None:
    assert 0 <= gpus_in(text) < 2**62
